"""Calibrated rounding: block scales chosen by error, and errors compensated by second moments of a layer's inputs."""
