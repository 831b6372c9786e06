"""In: a model. Out: where the time of its calls goes, by node, head, caches and memory."""
