"""The number of tokens to draft, the drafter and the verifier: chosen by what calls cost and drafts are worth."""
