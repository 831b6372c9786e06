"""In: the sizes of known models. Out: bundles of random weights, grown checkpoints, and what compiling them takes."""
