"""Whatever holds weights; never an environment."""
