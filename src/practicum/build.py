"""Config -> Run: the only module that names concrete classes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from practicum.config import RunConfig
from practicum.environment.curriculum.curriculum import PassRateCurriculum
from practicum.environment.curriculum.scheduler import Scheduler
from practicum.environment.domains.domain import Domain
from practicum.environment.domains.pool import TaskPool, draw_pool
from practicum.environment.domains.registry import get_domain
from practicum.environment.domains.reward import NoSandboxes, RewardHub
from practicum.environment.qc.report import EnvQC
from practicum.environment.rollout.rollouts import RolloutEngine
from practicum.environment.sandbox import open_pool
from practicum.errors import UsageError
from practicum.loop import Loop
from practicum.policy.engine.engine import Engine
from practicum.policy.model.hub import KNOWN, fetch_model, find_model
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer, save_transformer
from practicum.policy.train.sft import SftExample, train_sft
from practicum.policy.train.trainer import RLTrainer
from practicum.protocols import Metrics, Policy, SandboxPool, Sink, Store
from practicum.types import Report, Task

# Shapes differ from step to step, and oneDNN keeps compiled products for the last 1024 of them.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

__all__ = ["KNOWN", "Run", "assemble", "fetch"]

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: a float32 master weight and two moments."""


@dataclass(slots=True)
class Run:
    """Everything of one run, under the names of the public API; see `examples/loop.py`."""

    config: RunConfig
    source: Path
    """The folder the model came from."""
    tokens: Tokens
    policy: Engine
    ref_model: Policy | None
    """None: no KL term."""
    trainer: RLTrainer
    domains: dict[str, Domain]
    task_pool: TaskPool
    eval_pool: TaskPool
    sandboxes: SandboxPool
    scheduler: Scheduler
    rollout_engine: RolloutEngine
    reward_hub: RewardHub
    env_qc: EnvQC

    @property
    def checkpoint_bytes(self) -> int:
        """About how much one checkpoint takes."""
        return BYTES_PER_PARAMETER * sum(p.numel() for p in self.policy.model.parameters())

    def loop(self, store: Store, sinks: Sequence[Sink], checkpoint: Callable[[int], None]) -> Loop:
        """The RL loop over these parts."""
        return Loop(
            policy=self.policy,
            reference=self.ref_model,
            trainer=self.trainer,
            curriculum=self.scheduler.curriculum,
            rollouts=self.rollout_engine,
            env_qc=self.env_qc,
            store=store,
            sinks=sinks,
            groups_per_step=self.config.rollout.groups_per_step,
            max_staleness=self.config.rollout.max_staleness,
            min_group_size=self.config.rollout.min_group_size,
            checkpoint=checkpoint,
        )

    def pieces(self) -> list[str]:
        """The text of every token id, for reports."""
        return self.tokens.pieces()

    def export(self, folder: Path) -> None:
        """Write the present weights as a Hugging Face folder, in float32."""
        save_transformer(
            self.policy.model, folder, source=self.source, masters=self.trainer.weights
        )

    def close(self) -> None:
        """End the engine's thread and every sandbox."""
        self.policy.close()
        self.sandboxes.close()


def assemble(
    config: RunConfig,
    *,
    on_report: Sequence[Callable[[Report], None]] = (),
    on_warm_up: Callable[[int, Metrics], None] = lambda step, metrics: None,
    warm_up: bool = True,
) -> Run:
    """Load the model, draw the tasks and put a run together.

    The supervised warm-up of the recipe, if it has one, is done here: the trainer's master weights
    begin where it ends, and the same seed gives the same weights. A run that goes on from a
    checkpoint leaves it out. Raises UsageError for anything that cannot work.
    """
    torch.set_num_threads(config.threads or os.cpu_count() or 1)
    domains = {name: get_domain(name) for name in config.domains.shares}
    source, name = find_model(config.model.path)
    draw = partial(draw_pool, domains.values(), seed=config.seed, levels=config.domains.levels)
    task_pool = draw(split="train", size=config.domains.pool_size)
    num_eval = config.eval.tasks_per_domain
    eval_pool = draw(split="eval", size=num_eval) if num_eval else TaskPool([])
    sandboxes = _open_sandboxes(domains, config)
    model = load_transformer(source, getattr(torch, config.model.dtype))
    tokens = Tokens(source)
    policy = Engine(model, tokens, name=name)
    _check_room(policy, domains, [*task_pool.values(), *eval_pool.values()])
    if config.sft.steps and warm_up:
        examples = _worked_solutions(tokens, domains, task_pool)
        for step, metrics in enumerate(train_sft(model, examples, config.sft, seed=config.seed)):
            on_warm_up(step, metrics)
    trainer = RLTrainer(
        model,
        config.train,
        temperature=config.rollout.temperature,
        max_response_tokens=max(domain.limits.max_new_tokens for domain in domains.values()),
    )
    curriculum = PassRateCurriculum(
        task_pool, config.domains.shares, seed=config.seed, floor=config.domains.floor
    )
    return Run(
        config=config,
        source=source,
        tokens=tokens,
        policy=policy,
        ref_model=None,
        trainer=trainer,
        domains=domains,
        task_pool=task_pool,
        eval_pool=eval_pool,
        sandboxes=sandboxes,
        scheduler=Scheduler(curriculum, config.rollout.groups_per_step),
        rollout_engine=RolloutEngine(
            domains=domains,
            sandboxes=sandboxes,
            group_size=config.rollout.group_size,
            temperature=config.rollout.temperature,
            seed=config.seed,
        ),
        reward_hub=RewardHub(task_pool, sandboxes),
        env_qc=EnvQC(task_pool, observers=[curriculum.observe, *on_report]),
    )


def fetch(name: str) -> Path:
    """Get a known model into the cache, saying on stderr what is being done."""
    return fetch_model(name, progress=partial(print, file=sys.stderr))


def _open_sandboxes(domains: dict[str, Domain], config: RunConfig) -> SandboxPool:
    if any(domain.needs_sandbox for domain in domains.values()):
        return open_pool(unsafe=config.sandbox.unsafe)
    return NoSandboxes()


def _check_room(policy: Engine, domains: dict[str, Domain], tasks: Sequence[Task]) -> None:
    """Every prompt and its longest answer must fit the model's context."""
    for task in tasks:
        num_prompt = len(policy.render(task.prompt))
        num_new = domains[task.domain].limits.max_new_tokens
        if num_prompt + num_new > policy.context_length:
            raise UsageError(
                f"a task of {task.domain!r} has {num_prompt} prompt tokens and {num_new} more for "
                f"the answer, but {policy.name} holds only {policy.context_length}; leave the "
                "domain out, lower its level, or take a model with a longer context"
            )


def _worked_solutions(
    tokens: Tokens, domains: dict[str, Domain], pool: TaskPool
) -> list[SftExample]:
    """What a perfect policy would have said to each training task, its stop included."""
    examples: list[SftExample] = []
    for task in pool.values():
        domain = domains[task.domain]
        stop = domain.limits.stop[0] if domain.limits.stop else ""
        answer = tokens.encode(domain.oracle(task) + stop)
        if not stop and tokens.eos_id is not None:
            answer = [*answer, tokens.eos_id]
        examples.append(SftExample(tuple(tokens.render(task.prompt)), tuple(answer)))
    return examples
