"""Is it right, is it fast."""
