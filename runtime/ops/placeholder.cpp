int mxspec_placeholder_ops() { return 0; }
