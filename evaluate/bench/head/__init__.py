"""The steps of a draft whose head has all rows, or few."""
