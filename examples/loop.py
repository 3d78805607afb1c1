"""The whole of RL post-training in ten lines of the public API, on real parts.

It trains the `tiny` recipe exactly as `practicum train tiny` does: the final weights are equal, bit
for bit. Run it with `python examples/loop.py`.
"""

from practicum import VERIFIER_REGISTRY as DOMAIN_VERIFIERS
from practicum import RunConfig, assemble, load_recipe

SANDBOX_TOOLS = ()  # the present domains answer in one turn


def train(config: RunConfig) -> str:
    """Train without a store, checkpoints or reports. Returns the digest of the final weights."""
    run = assemble(config)
    policy, ref_model, trainer, env_qc = run.policy, run.ref_model, run.trainer, run.env_qc
    scheduler, rollout_engine, reward_hub = run.scheduler, run.rollout_engine, run.reward_hub
    task_pool, ACTIVE_DOMAINS, total_steps = run.task_pool, run.domains, config.train.steps

    for step in range(total_steps):
        tasks = scheduler.sample(task_pool, domains=ACTIVE_DOMAINS)
        trajectories = rollout_engine.generate(policy, tasks, tools=SANDBOX_TOOLS)
        rewards = reward_hub.score(trajectories, verifiers=DOMAIN_VERIFIERS)
        metrics = trainer.update(policy, ref_model, trajectories, rewards)
        env_qc.report(trajectories, rewards)

        mean = sum(verdict.reward for verdict in rewards.values()) / len(rewards)
        print(f"step {step + 1}: reward {mean:.3f}, gradient norm {metrics['train/grad_norm']:.3f}")

    run.close()
    return trainer.digest()


if __name__ == "__main__":
    print("weights", train(load_recipe("tiny"))[:16])
