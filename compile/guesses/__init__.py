"""What a bundle knows of a text for drafters that need no model."""
