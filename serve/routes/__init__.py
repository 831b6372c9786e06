"""What is answered where."""
