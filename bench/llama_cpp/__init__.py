"""In: models for both programs. Out: llama.cpp beside mxspec, on the same cores in the same minutes."""
