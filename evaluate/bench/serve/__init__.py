"""The server: what it costs beside the engine in the same process, and what texts notice of each other."""
