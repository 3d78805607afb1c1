"""Scripts that run in a peer's own environment, and the little that our own contenders share."""
