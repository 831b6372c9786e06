"""The commands of `specbench`, one file each."""
