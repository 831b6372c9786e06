"""The calls of a whole target: decoding, scoring, prefill."""
