"""MX formats and the bundle on disk."""
