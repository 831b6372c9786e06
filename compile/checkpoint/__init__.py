"""What a checkpoint is: its files, its configuration, the names of its tensors, its tokenizer's ids."""
