"""Draft models as drafters call them: what they read of texts, and where their guesses are no longer worth a call."""
