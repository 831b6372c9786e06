"""Which drafted tokens are kept, and which token follows them: pure functions on arrays, one file a verifier."""
