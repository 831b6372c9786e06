"""Which drafted tokens are kept, and which token follows them: pure functions on arrays, all in verify.py."""

NAMES = ("mrs", "block", "match")  # under which users ask for them, for sampled text
