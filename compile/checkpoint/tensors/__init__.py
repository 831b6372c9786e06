"""Tensors of a checkpoint, read piece by piece: as a file has them, or computed from such ones as they are read."""
