"""How far the packed target is from the fp16 one: `speccheck accuracy`."""
