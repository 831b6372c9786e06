"""In: bundles, prompts, and the settings to vary. Out: speculation beside plain decoding at every combination."""
