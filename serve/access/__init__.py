"""Around all routes: who may ask, by host and key, and the log of what was answered."""
