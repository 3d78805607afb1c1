"""The helper processes that make sandboxes: standard library only, they never import practicum."""
