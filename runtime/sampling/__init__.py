"""How a token is chosen: from logits to a distribution, and the random numbers that draw from it."""
