"""The files of a checkpoint: which ones hold weights, how pickled ones are read, and whether one changes meanwhile."""
