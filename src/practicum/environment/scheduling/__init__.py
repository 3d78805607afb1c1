"""When a group may start, and when it is trained on."""
