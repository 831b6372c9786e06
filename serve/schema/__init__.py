"""The fields of requests, and their checks."""
