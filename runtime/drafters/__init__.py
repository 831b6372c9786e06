"""Who guesses ahead, one file a drafter. The verifier does not care: it sees tokens and their distributions."""

NAMES = (
    "model",
    "suffix",
    "ngram",
    "lookup",
    "hierarchical",
    "mix",
    "random",
    "none",
)  # under which users ask for them
