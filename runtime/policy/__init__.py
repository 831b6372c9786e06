"""The number of tokens to draft: decided by what calls cost and what drafts are worth."""
