"""Drafters, which guess ahead, one file each. The verifier does not care: it sees tokens and their distributions."""

NAMES = ("model", "suffix", "ngram", "hierarchical", "none")  # under which users ask for them
