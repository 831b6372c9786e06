"""Graphs made ready to run: sessions, their bound buffers and caches, encoders."""
