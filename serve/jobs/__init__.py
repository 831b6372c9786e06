"""A batch job on Ray: its rows, where it runs, what it does, and the parts of its answer."""
