"""All combinations of varied settings, each beside plain decoding."""
