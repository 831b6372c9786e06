"""What `specrun` does, one noun a file: one answer, a chat, a batch job, and what their options say."""
