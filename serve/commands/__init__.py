"""The commands `specserve` and `specbatch`."""
