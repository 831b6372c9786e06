"""The packed product, attention and experts alone."""
