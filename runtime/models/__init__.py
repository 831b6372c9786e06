"""Graphs made ready to run: sessions, their bound buffers, caches and slots, encoders."""
