"""From a checkpoint's tensors to the weights file: read, round, pack, write."""
