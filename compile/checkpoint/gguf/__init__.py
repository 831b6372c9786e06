"""GGUF files as checkpoints: the container, its block types, and the families of models."""
