"""Does what was written run, and does it compute what transformers computes?"""
