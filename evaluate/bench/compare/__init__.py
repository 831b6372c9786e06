"""What moved between two records of a benchmark."""
