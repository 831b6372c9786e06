"""Beam search: find the likeliest texts instead of the likeliest tokens, with or without a draft."""
