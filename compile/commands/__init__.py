"""speccompile: its command that compiles, with what it reports, and the commands beside it."""
