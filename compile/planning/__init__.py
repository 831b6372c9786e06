"""What will be compiled: contexts, formats, the exported graph, where each weight will lie, and a forecast."""
