int mxspec_placeholder_kernel() { return 0; }
