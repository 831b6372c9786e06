"""The compiler: from checkpoints to a bundle."""
