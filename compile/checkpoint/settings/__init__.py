"""What the JSON files of a checkpoint say: its configuration, the model's shape, generation, special tokens."""
