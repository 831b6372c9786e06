"""Checkpoints: their files, configuration, tensor names and tokenizer ids."""
