"""Open files of weights come in; tensors go out, read in pieces as a file has them, or computed from such tensors."""
