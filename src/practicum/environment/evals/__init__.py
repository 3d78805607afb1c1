"""How good the policy is, on tasks that training never sees."""
