"""Policy: choose the number of tokens to draft by the cost of calls and the value of drafts."""
