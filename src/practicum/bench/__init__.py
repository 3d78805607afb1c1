"""`practicum bench`: ours and peers side by side, each peer in its own environment."""
