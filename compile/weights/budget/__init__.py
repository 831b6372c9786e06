"""A budget of bytes or of quality: what each matrix's formats cost in text and in bytes, and the best choice."""
