"""GGUF files as checkpoints: the container, its block types, and what each family of models needs undone."""
