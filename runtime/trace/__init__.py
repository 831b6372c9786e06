"""Traces for people: what was decided in every round, collected and shown as a page."""
