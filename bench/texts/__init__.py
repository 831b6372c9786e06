"""In: a bundle and texts or questions. Out: what speculation gains on them, and whether an answer is wrong or lost."""
