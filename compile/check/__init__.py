"""Is the pair a pair, and does what was written run as it must?"""
