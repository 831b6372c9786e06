"""One thing and another varied, each beside plain decoding."""
