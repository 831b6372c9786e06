"""Which drafted tokens are kept, and which token follows them: pure functions on arrays, one file a verifier."""

NAMES = ("mrs", "block", "match")  # under which users ask for them, for sampled text
