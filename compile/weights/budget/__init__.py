"""A budget of bytes or of quality: the loss and the bytes of each matrix's formats, and the best choice."""
