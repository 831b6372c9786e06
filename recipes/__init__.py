"""What to compile: recipes and the demo pair."""
