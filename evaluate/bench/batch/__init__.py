"""Many texts at once."""
