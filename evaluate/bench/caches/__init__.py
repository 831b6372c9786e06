"""Calls of a model after many tokens, with each kind of key-value caches."""
