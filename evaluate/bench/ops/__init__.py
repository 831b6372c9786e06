"""The packed product and attention alone."""
