"""The comparison with llama.cpp: its build, its files, its programs, and ours beside them."""
