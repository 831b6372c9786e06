"""What was decided in every round of a text, written down."""
