"""The decoder, its weights in and out of Hugging Face folders, and its tokens."""
