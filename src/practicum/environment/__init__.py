"""What the policy acts in: sandboxes, domains, rollouts, scheduling, QC. Never torch."""
