"""Is a bundle fast? What `specbench` measures, and the bundles of a real size that it measures on."""
