"""The graph of a model: its nodes by name, and the weights that it wants."""
