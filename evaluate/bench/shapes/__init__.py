"""Bundles of the shapes of well-known models, made without a checkpoint."""
