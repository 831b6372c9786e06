"""Rounding with care: block scales by error, and errors compensated with second moments of a layer's inputs."""
