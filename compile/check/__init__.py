"""Checks of a compiled model: does it run, and does it compute the same as transformers?"""
