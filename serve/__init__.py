"""A bundle as a service: an OpenAI-compatible server, its page, and jobs over many machines."""
