"""Config -> Run: the only module that names concrete classes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from practicum.config import RunConfig
from practicum.config_engine import EngineConfig
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
from practicum.policy.engine.adapters.home import Home
from practicum.policy.engine.adapters.mirror import Mirror
from practicum.policy.engine.adapters.openai_server import OpenAiPolicy
from practicum.policy.engine.adapters.sglang_server import SglangServer
from practicum.policy.engine.adapters.vllm_process import VllmPolicy
from practicum.policy.engine.adapters.vllm_server import VllmServer
from practicum.policy.engine.engine import Engine
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.options import EngineOptions
from practicum.policy.model.hub import KNOWN, fetch_model, find_model
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer, save_transformer
from practicum.policy.train.sft import SftExample, train_sft
from practicum.policy.train.trainer import Publisher, RLTrainer
from practicum.protocols import Metrics, Policy, SandboxPool, Sink, Store
from practicum.sampling import Sampling
from practicum.types import Task
from practicum.verdicts import Report

# Shapes differ from step to step, and oneDNN keeps compiled products for the last 1024 of them.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")

__all__ = ["KNOWN", "Run", "assemble", "fetch"]

GIB = 1 << 30
BYTES_PER_PARAMETER = 12
"""Of a checkpoint: a float32 master weight and two moments."""


@dataclass(slots=True)
class Run:
    """Everything of one run, under the names of the public API; see `examples/loop.py`."""

    config: RunConfig
    source: Path
    """The folder the model came from."""
    tokens: Tokens
    policy: Policy
    """What samples; it runs the trainer's weights, unless it takes none (see `check_trainable`)."""
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
    opened: ExitStack = field(repr=False)
    """Closes the engine and every sandbox."""

    @property
    def checkpoint_bytes(self) -> int:
        """About how much one checkpoint takes."""
        return BYTES_PER_PARAMETER * sum(p.numel() for p in self.trainer.weights.values())

    @property
    def caveat(self) -> str | None:
        """What is not exact about the completions of this run; None if they are."""
        engine = self.config.engine
        own = engine.kind == "own"
        what = engine_options(engine).approximations if own else f"another engine ({engine.kind})"
        return what and (
            f"completions come from {what}, so their log-probs are not quite those that the "
            "trainer finds. No importance weights correct for that yet: updates are biased by the "
            "difference, and train/logprob_gap is its size. Evaluations run the same way"
        )

    def check_trainable(self) -> None:
        """Raises UsageError if the policy cannot be kept equal to the trainer's model."""
        if not isinstance(self.policy, Publisher):
            raise UsageError(
                f"{self.policy.name} runs behind engine.kind {self.config.engine.kind!r}, which "
                "takes no new weights, so it cannot be trained; choose 'own', 'vllm', "
                "'vllm-server' or 'sglang-server' (from Python it can be evaluated)"
            )

    def publish(self) -> None:
        """Have the policy run the trainer's present weights, if it takes any."""
        policy = self.policy
        if isinstance(policy, Publisher):
            with policy.lock:
                policy.publish(self.trainer.version)

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
            self.trainer.model, folder, source=self.source, masters=self.trainer.weights
        )

    def close(self) -> None:
        """End the engine, or let go of its server, and end every sandbox. Idempotent."""
        self.opened.close()


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
    with ExitStack() as opened:  # closes what was opened if something later fails
        run = _assemble(config, opened, on_report, on_warm_up, warm_up)
        run.opened = opened.pop_all()
        return run


def _assemble(
    config: RunConfig,
    opened: ExitStack,
    on_report: Sequence[Callable[[Report], None]],
    on_warm_up: Callable[[int, Metrics], None],
    warm_up: bool,
) -> Run:
    torch.set_num_threads(config.threads or os.cpu_count() or 1)
    domains = {name: get_domain(name) for name in config.domains.shares}
    source, name = find_model(config.model.path)
    draw = partial(draw_pool, domains.values(), seed=config.seed, levels=config.domains.levels)
    task_pool = draw(split="train", size=config.domains.pool_size)
    num_eval = config.eval.tasks_per_domain
    eval_pool = draw(split="eval", size=num_eval) if num_eval else TaskPool([])
    sandboxes = _open_sandboxes(domains, config)
    opened.callback(sandboxes.close)
    model = load_transformer(source, getattr(torch, config.model.dtype))
    tokens = Tokens(source)
    policy = _open_engine(config, model, tokens, name, opened)
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
    run = Run(
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
        opened=opened,
    )
    run.publish()  # the warm-up moved the weights, and a server may hold any
    return run


def engine_options(config: EngineConfig) -> EngineOptions:
    """Of our own engine."""
    kv = config.kv
    return EngineOptions(
        max_batch_rows=config.rows,
        max_step_tokens=max(512, 2 * config.rows),
        cache_bytes=int(config.cache_gb * GIB),
        swap_bytes=int(config.swap_gb * GIB),
        speculate=config.speculate,
        precision=config.precision,
        kv=KvPolicy(
            bits=kv.bits,
            recent=kv.recent,
            top_pages=kv.top_pages,
            window=kv.window or None,
            sinks=kv.sinks,
            layers=frozenset(kv.layers) or None,
        ),
    )


def _open_engine(
    config: RunConfig, model: Transformer, tokens: Tokens, name: str, opened: ExitStack
) -> Policy:
    """Whatever `[engine]` says. Raises UsageError for an engine that cannot do what it is for."""
    engine, source = config.engine, tokens.folder
    if engine.kind == "own":
        policy = Engine(model, tokens, name=name, options=engine_options(engine))
        opened.callback(policy.close)
        return policy
    home = Home()
    opened.callback(home.close)
    key, length = _api_key(engine), model.shape.context_length
    if engine.kind == "openai-server":
        connecting = OpenAiPolicy.connect(
            engine.url, tokens=tokens, context_length=length, api_key=key
        )
        return home.run(connecting)
    if engine.exchange and not Path(engine.exchange).is_dir():
        raise UsageError(f"engine.exchange {engine.exchange!r} is not a folder; make it first")
    if engine.kind == "vllm":
        options = {"dtype": config.model.dtype, **engine.options}
        remote = home.run(VllmPolicy.start(source, options=options))
    else:
        server = VllmServer if engine.kind == "vllm-server" else SglangServer
        remote = home.run(server.connect(engine.url, tokens, api_key=key))
    write = partial(save_transformer, model, source=source, dtype=model.dtype)
    policy = Mirror(remote, write, home, Path(engine.exchange) if engine.exchange else None)
    opened.callback(policy.close)
    sampling = Sampling(max_new_tokens=1, temperature=config.rollout.temperature)
    if reason := remote.why_not_trainable(sampling):
        raise UsageError(f"{remote.name} cannot be trained: {reason}")
    return policy


def _api_key(engine: EngineConfig) -> str | None:
    if not engine.api_key_env:
        return None
    if not (key := os.environ.get(engine.api_key_env)):
        raise UsageError(
            f"engine.api_key_env names {engine.api_key_env}, which is not set in the environment"
        )
    return key


def fetch(name: str) -> Path:
    """Get a known model into the cache, saying on stderr what is being done."""
    return fetch_model(name, progress=partial(print, file=sys.stderr))


def _open_sandboxes(domains: dict[str, Domain], config: RunConfig) -> SandboxPool:
    if any(domain.needs_sandbox for domain in domains.values()):
        return open_pool(unsafe=config.sandbox.unsafe)
    return NoSandboxes()


def _check_room(policy: Policy, domains: dict[str, Domain], tasks: Sequence[Task]) -> None:
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
