"""The certificate of `speccheck lossless`: is drafted text the target's own? One file a check."""
