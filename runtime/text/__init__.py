"""Between text and token ids: prompts, chats, and the text of an answer as it comes."""
