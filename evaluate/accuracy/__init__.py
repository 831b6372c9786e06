"""`speccheck accuracy`: what compression costs the target, compared with the target in fp16."""
