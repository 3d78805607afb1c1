"""Builders of plausible content, through the same interfaces that a run uses."""

from __future__ import annotations

import hashlib
import math
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from practicum.config import resolve
from practicum.observe.checkpoints import Checkpoints
from practicum.observe.evals import EvalResult, EvalTask, write_eval
from practicum.observe.metrics import MetricsLog
from practicum.observe.run_folder import RunFolder
from practicum.observe.runlog import RunLog
from practicum.observe.step_metrics import step_metrics
from practicum.observe.store import TrajectoryStore
from practicum.types import Failure, Message, Outcome, Segment, StopReason, Task, Trajectory, Usage
from practicum.verdicts import Finding, Group, Report, Verdict, VerifierId, Violation

MakeGroup = Callable[..., Group]
BuildRun = Callable[..., Path]

NAMES = ("Ana", "Ben", "Cleo", "Dev", "Edda", "Finn", "Gus", "Hana", "Ivo", "June", "Kai", "Lena")
VERIFIER = VerifierId("addition", "1", "5f1c" * 8)


def _make_group(
    name: str = "g",
    *,
    domain: str = "addition",
    prompt: str = "3+4=",
    answers: tuple[str, ...] = ("7", "8", ""),
    version: int = 0,
    generate_s: float = 0.25,
) -> Group:
    """A group whose attempts answer as given; an empty answer is an infrastructure failure."""
    task = Task.create(
        domain=domain,
        prompt=(Message("text", prompt),),
        answer="7",
        difficulty=0.2,
        split="train",
    )
    trajectories: list[Trajectory] = []
    verdicts: dict[str, Verdict] = {}
    for sample, answer in enumerate(answers):
        sampled = list(answer.encode())
        logprobs = [-0.1 * (i + 1) for i in range(len(sampled))]
        segment = Segment.of(list(prompt.encode()), sampled, logprobs, [version] * len(sampled))
        trajectory = Trajectory(
            id=f"{name}-{sample}",
            group_id=name,
            task_id=task.id,
            sample=sample,
            messages=(*task.prompt, Message("assistant", answer)),
            segments=(segment,),
            stop_reason=StopReason.EOS if answer else StopReason.ABORTED,
            outcome=Outcome.SCORED if answer else Outcome.INFRA_FAILURE,
            failure=None if answer else Failure("sandbox_lost", "the sandbox went away"),
            usage=Usage(len(prompt), len(sampled), 1, generate_s, 0.01),
        )
        trajectories.append(trajectory)
        if answer:
            verdict = Verdict(float(answer == "7"), VERIFIER, evidence=f"got {answer!r}")
            verdicts[trajectory.id] = verdict
    return Group(name, task, tuple(trajectories), verdicts)


@dataclass
class _World:
    """A model that learns four domains at four speeds, and a tokenizer of words for it."""

    seed: int
    rng: random.Random = field(init=False)
    vocabulary: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def skill(self, domain: str, progress: float) -> float:
        start, end = {
            "addition": (0.22, 0.61), "max_of_three": (0.35, 0.93),
            "reversal": (0.02, 0.09), "transitive": (0.31, 0.62),
        }[domain]  # fmt: skip
        return start + (end - start) / (1 + math.exp(-8 * (progress - 0.4)))

    def question(self, domain: str) -> tuple[str, str, str]:
        """(prompt, answer, a wrong answer)."""
        pick, number = self.rng.choice, self.rng.randint
        if domain == "addition":
            a, b = number(10, 99), number(10, 99)
            return f"What is {a} + {b}?", str(a + b), str(a + b + pick([-10, 1, 10]))
        if domain == "max_of_three":
            three = self.rng.sample(range(10, 999), 3)
            prompt = "Which is the largest number: {}, {} or {}?".format(*three)
            return prompt, str(max(three)), str(min(three))
        if domain == "reversal":
            word = "".join(pick("bcdfglmnprst") + pick("aeiou") for _ in range(3))
            return f"Write the word '{word}' backwards.", word[::-1], word[::-1][1:] + word[0]
        names = self.rng.sample(NAMES, 3)
        prompt = "{0} is older than {1}. {1} is older than {2}. Who is the oldest?".format(*names)
        return prompt, names[0], names[1]

    def encode(self, text: str) -> list[int]:
        pieces = re.findall(r" ?[A-Za-z]+| ?\d|.", text, re.DOTALL)
        for piece in pieces:
            if piece not in self.vocabulary:
                self.vocabulary.append(piece)
        return [self.vocabulary.index(piece) for piece in pieces]

    def task(self, domain: str, split: str) -> tuple[Task, str]:
        prompt, answer, wrong = self.question(domain)
        task = Task.create(
            domain=domain,
            prompt=(Message("user", prompt),),
            answer=answer,
            difficulty=self.rng.random(),
            split="eval" if split == "eval" else "train",
            metadata={"serial": str(self.rng.random())},
        )
        return task, wrong

    def group(self, name: str, domain: str, step: int, num_steps: int, size: int) -> Group:
        task, wrong = self.task(domain, "train")
        skill = self.skill(domain, step / num_steps)
        ease = min(0.98, max(0.01, self.rng.gauss(skill, 0.2)))
        attempts = [
            self.attempt(task, wrong, f"{name}-{sample}", name, sample, step, ease, skill)
            for sample in range(size)
        ]
        verdicts = {t.id: v for t, v in attempts if v is not None}
        return Group(name, task, tuple(t for t, _ in attempts), verdicts)

    def attempt(
        self, task: Task, wrong: str, id: str, group: str, sample: int, step: int,
        ease: float, skill: float,
    ) -> tuple[Trajectory, Verdict | None]:  # fmt: skip
        luck, verifier = (
            self.rng.random(),
            VerifierId(task.domain, "1", f"{hash_of(task.domain):016x}" * 4),
        )
        right, said = luck < ease, ""
        said = f"The answer is {task.answer if right else wrong}."
        outcome, failure, verdict, stop = Outcome.SCORED, None, None, StopReason.EOS
        if self.rng.random() < 0.006:
            outcome, failure = (
                Outcome.INFRA_FAILURE,
                Failure("sandbox_lost", "host went away", "exec"),
            )
        elif self.rng.random() < 0.03 * (1.2 - skill):
            outcome, stop = Outcome.MODEL_FAILURE, StopReason.MAX_TOKENS
            failure = Failure("too_long", "no answer within 32 tokens", "generate")
            said = said[:-1] + " because the answer is" * 4
            verdict = Verdict(0.0, verifier)
        else:
            rambling = self.rng.random() < 0.05
            parts = {"exact": float(right), "format": float(not rambling)}
            verdict = Verdict(
                float(right), verifier, parts=parts,
                violations=(Violation("format", 0.1, "text after the answer"),) if rambling else (),
                evidence=f"expected {task.answer!r}, found {task.answer if right else wrong!r}",
            )  # fmt: skip
        prompt_ids, sampled = self.encode(task.prompt[0].content), self.encode(said)
        logprobs = [
            -self.rng.expovariate(2 + 12 * skill * (t % 3 + 1)) for t in range(len(sampled))
        ]
        trajectory = Trajectory(
            id, group, task.id, sample, (*task.prompt, Message("assistant", said)),
            (Segment.of(prompt_ids, sampled, logprobs, [step] * len(sampled)),),
            stop, outcome, failure, Usage(len(prompt_ids), len(sampled), 1, 0.8, 0.002),
        )  # fmt: skip
        return trajectory, verdict

    def training(self, step: int, num_steps: int) -> dict[str, float]:
        """What a trainer and the loop would measure."""
        gauss = self.rng.gauss
        rollout_s, train_s = gauss(3.4, 0.2), gauss(2.1, 0.1)
        return {
            "train/loss": gauss(0.0, 0.01),
            "train/grad_norm": gauss(0.9, 0.15),
            "train/entropy": 0.9 * math.exp(-1.4 * step / num_steps) + gauss(0, 0.02),
            "train/logprob_gap": abs(gauss(0, 2e-7)),
            "time/rollout_s": rollout_s,
            "time/train_s": train_s,
            "time/backward_s": 0.6 * train_s,
            "time/step_s": rollout_s + train_s + 0.3,
            "memory/peak_gb": 1.9,
        }

    def evaluation(self, tasks: list[Task], step: int, num_steps: int) -> EvalResult:
        """Each task has its own threshold, so that before and after are correlated."""
        found: dict[str, EvalTask] = {}
        for task in tasks:
            threshold = (hash_of(task.id) % 997) / 997
            skill = self.skill(task.domain, step / num_steps) + self.rng.gauss(0, 0.05)
            right = threshold < skill
            said = f"The answer is {task.answer if right else '?'}."
            lost = step > 0 and hash_of(task.id) % 211 == 0
            score, outcome = (None, "infra_failure") if lost else (float(right), "scored")
            found[task.id] = EvalTask(task.domain, score, outcome, said)
        return EvalResult(step, "SmolLM2-135M-Instruct (from Q4_1)", step, found)


def hash_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _build_run(
    root: Path, *, num_steps: int = 45, stop_after: int | None = None, groups_per_step: int = 12,
    group_size: int = 8, tasks_per_domain: int = 128, seed: int = 0, name: str = "demo",
) -> Path:  # fmt: skip
    """A whole run folder, as the loop would leave it: finished, or stopped after some steps."""
    config = resolve(
        {
            "name": name, "seed": seed, "train": {"steps": num_steps},
            "rollout": {"groups_per_step": groups_per_step, "group_size": group_size},
        },
        {},
    )  # fmt: skip
    world, domains = _World(seed), sorted(config.domains.shares)
    with RunFolder.create(root, name, config) as run:
        store = TrajectoryStore(run.trajectories)
        metrics, log = MetricsLog(run.path), RunLog(run.log)
        checkpoints = Checkpoints(run.checkpoints, keep=2)
        held_out = [world.task(d, "eval")[0] for d in domains for _ in range(tasks_per_domain)]
        write_eval(run.evals, world.evaluation(held_out, 0, num_steps))
        for step in range(num_steps if stop_after is None else stop_after):
            groups = [
                world.group(
                    f"{step:03d}-{slot:02d}",
                    domains[(step + slot) % 4],
                    step,
                    num_steps,
                    group_size,
                )
                for slot in range(groups_per_step)
            ]
            for group in groups:
                store.append(group)
            store.commit(step, [group.id for group in groups])
            silent = [g for g in groups if not g.has_signal and g.task.domain == "reversal"]
            evidence = f"0 of {group_size} attempts passed"
            findings = tuple(
                Finding("never_passes", group.task.domain, evidence, group.task.id)
                for group in silent[:1]
                if step % 9 == 0
            )
            log.findings(step, findings)
            lost = [_make_group(f"{step:03d}-lost", answers=("", ""))] if step % 4 == 3 else []
            measured = step_metrics(step, groups, lost, Report(step, (), {}, findings))
            metrics.log(step, measured | world.training(step, num_steps))
        if stop_after is None:
            write_eval(run.evals, world.evaluation(held_out, num_steps, num_steps))
        checkpoints.save(num_steps, lambda folder: None, {"next_slot": 1})
        run.write_vocabulary(world.vocabulary)
        for part in (store, metrics, log):
            part.close()
    return run.path


@pytest.fixture
def make_group() -> MakeGroup:
    return _make_group


@pytest.fixture
def build_run() -> BuildRun:
    return _build_run


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run that no test may change."""
    root = tmp_path_factory.mktemp("runs")
    return _build_run(root, num_steps=9, groups_per_step=8, group_size=4, tasks_per_domain=40)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; skips where this process may not mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a tmpfs here (needs root), so the disk cannot be made full")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
