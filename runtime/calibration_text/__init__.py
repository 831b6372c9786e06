"""Text that a model writes by itself, where a user has none at hand: to calibrate rounding, and to measure its cost."""
