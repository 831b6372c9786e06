"""The commands of speccompile: compile with its report, and list, explain, inspect and emit."""
