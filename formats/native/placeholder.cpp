int mxspec_placeholder_codec() { return 0; }
