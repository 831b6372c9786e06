"""Where a text's endings occurred before: in the text itself, in past answers, in a corpus."""
