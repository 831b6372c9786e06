"""The draft's tokens, if they are not simply the target's: few of them, or those of another tokenizer."""
