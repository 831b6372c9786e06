"""fp16, packed, and speculating, in one run."""
