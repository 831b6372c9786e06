"""`specbench beams`: what beam search costs, and what a draft makes of it."""
