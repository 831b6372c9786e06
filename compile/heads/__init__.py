"""Drafts that read a target's hidden states: their configuration and their module in torch."""
