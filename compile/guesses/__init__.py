"""Texts in a bundle for drafters without a model."""
