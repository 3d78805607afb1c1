"""Scripts that run in a peer's own environment; Practicum never imports them."""
