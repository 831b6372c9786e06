"""How many tokens are drafted, by whom, and what is kept: decided by what calls cost and what drafts are worth."""
