"""Grammars that a text must keep to: as requests say them, and where a text stands in one."""
