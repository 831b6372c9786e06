"""From checkpoints to a bundle."""
