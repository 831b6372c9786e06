"""Does a pair do its tasks as well with speculation as without, and the lm-evaluation-harness on this engine."""
