"""Plan a compile: contexts, formats, the exported graph, the place of each weight, and an outline."""
