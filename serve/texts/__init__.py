"""The texts of an answer while they are written."""
