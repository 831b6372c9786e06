"""Bodies within limits, and answers with their errors."""
