"""Who guesses ahead, one file a drafter. The verifier does not care: it sees tokens and their distributions."""

NAMES = ("model", "random", "none")  # under which users ask for them
