"""specbench floor: what the smallest steps of a call cost."""
