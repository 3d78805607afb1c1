"""Attempts at tasks: the policy plays, the domain's verifier judges."""
