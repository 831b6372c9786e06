"""The server beside the engine in the same process, and how a long prompt delays other texts."""
