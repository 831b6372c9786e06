"""The graph of a model: its operators by name, and the weights that it needs."""
