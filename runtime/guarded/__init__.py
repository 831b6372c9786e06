"""Processes for work on untrusted input: what takes too much time, memory or stack ends its process alone."""
