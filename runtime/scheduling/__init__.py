"""Scheduling: which texts run, in which slots, and what a step does for each text."""
