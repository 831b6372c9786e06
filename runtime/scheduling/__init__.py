"""Which texts run, in which slots, and what a step does for them."""
