"""`speccheck tasks` compares answers with and without speculation; `mxspec-eval` runs the lm-evaluation-harness."""
