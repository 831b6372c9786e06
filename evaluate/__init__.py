"""Checks and benchmarks: is a bundle right, and is it fast?"""
