"""The certificate of `speccheck lossless`: is drafted text the target's own? Each check has its own file."""
