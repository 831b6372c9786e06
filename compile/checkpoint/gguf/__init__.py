"""A GGUF file comes in; the settings, tokenizer and tensors of a Hugging Face checkpoint go out."""
