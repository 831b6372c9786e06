"""Train an EAGLE-3 head for a target, on text that the target writes."""
