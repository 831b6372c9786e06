"""What the commands of all packages share: exit codes, one-line errors, options, tables and progress."""
