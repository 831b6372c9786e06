"""Attacks on a server: what is sent, and what is measured beside it."""
