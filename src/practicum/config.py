"""Every setting of a run. Strict: an unknown key is an error with a hint, never ignored.

A recipe is a TOML file of these fields; any of them can be overridden by its dotted path
(`--train.learning_rate 2e-5`). Imports nothing heavy.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from practicum.config_engine import EngineConfig, Section
from practicum.errors import UsageError, did_you_mean

Algorithm = Literal["grpo", "dr_grpo"]
GROUP_RELATIVE: frozenset[str] = frozenset(get_args(Algorithm))
"""Algorithms whose baseline is the group's own mean; they need at least two samples a group."""


class ModelConfig(Section):
    path: str = Field(default="smollm2-135m", min_length=1)
    """A name that `practicum data model` knows, `tiny`, or a local Hugging Face folder."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the weights and what the products read; sums, the residual stream, logits and master
    weights are always float32."""


class RolloutConfig(Section):
    groups_per_step: int = Field(default=12, ge=1, le=4096)
    group_size: int = Field(default=8, ge=1, le=4096)
    temperature: float = Field(default=1.0, ge=0.0)
    max_staleness: int = Field(default=0, ge=0)
    """Most versions between a group's reservation and its training; 0 is synchronous."""
    min_group_size: int = Field(default=2, ge=1)
    """A group with fewer counting attempts is dropped, with a count, and replaced."""


class TrainConfig(Section):
    steps: int = Field(default=45, ge=1)
    algorithm: Algorithm = "dr_grpo"
    learning_rate: float = Field(default=1e-5, ge=0.0)
    warmup_steps: int = Field(default=5, ge=0)
    decay_to: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of the learning rate left at the end; it falls linearly after the warm-up, by updates:
    a step without signal makes none."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    max_grad_norm: float = Field(default=1.0, gt=0.0)
    updates_per_step: int = Field(default=1, ge=1)
    """Optimizer updates on the same groups; beyond the first the ratio can leave 1, and clip."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    clip_high: float = Field(default=0.28, gt=0.0)
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Most distinct tokens (shared prefixes counted once) in one forward and backward pass."""


class SftConfig(Section):
    """Warm-up on worked solutions; 0 steps leaves it out."""

    steps: int = Field(default=0, ge=0)
    batch_size: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=1e-3, ge=0.0)


def with_floor(shares: Mapping[str, float], floor: float) -> dict[str, Fraction]:
    """Normalise to a sum of 1 with no share below `floor`; the others give way in proportion.

    Exact, and sorted by domain. Raises UsageError for shares that are not positive or floors that
    add up to more than 1.
    """
    if not shares:
        raise UsageError("at least one domain is needed")
    if not all(0 < share < math.inf for share in shares.values()):
        raise UsageError(
            f"every share must be above 0 and finite, not {dict(shares)}; leave a domain out to "
            "switch it off"
        )
    if floor * len(shares) > 1:
        raise UsageError(f"a floor of {floor} for each of {len(shares)} domains exceeds 1")
    # Ten floors of 0.1 are a hair above 1, since the float is a hair above a tenth.
    least = min(Fraction(floor), Fraction(1, len(shares)))
    given = {domain: Fraction(shares[domain]) for domain in sorted(shares)}
    result = _scaled(given, Fraction(1))
    # Raising some to the floor lowers the others, which may put one of those below it in turn.
    while any(share < least for share in result.values()):
        raised = {domain for domain, share in result.items() if share <= least}
        rest = {domain: share for domain, share in given.items() if domain not in raised}
        result = dict.fromkeys(given, least) | _scaled(rest, 1 - least * len(raised))
    return result


def _scaled(shares: Mapping[str, Fraction], total: Fraction) -> dict[str, Fraction]:
    factor = total / sum(shares.values(), Fraction(0)) if shares else total
    return {domain: share * factor for domain, share in shares.items()}


class DomainsConfig(Section):
    shares: dict[str, float] = Field(
        default={"max_of_three": 1.0, "reversal": 1.0, "transitive": 1.0, "addition": 1.0}
    )
    """Domain -> share of the groups; normalised to sum to 1."""
    floor: float = Field(default=0.05, ge=0.0, lt=1.0)
    """Least share of any active domain."""
    levels: tuple[float, float] = Field(default=(0.0, 1.0), strict=False)
    """Range of difficulty to draw tasks from."""
    pool_size: int = Field(default=512, ge=1)
    """Training tasks drawn per domain."""

    @model_validator(mode="after")
    def _check(self) -> DomainsConfig:
        with_floor(self.shares, self.floor)
        low, high = self.levels
        if not 0.0 <= low <= high <= 1.0:
            raise ValueError(f"levels must satisfy 0 <= low <= high <= 1, not {low}, {high}")
        return self


class EvalConfig(Section):
    tasks_per_domain: int = Field(default=128, ge=0)
    """Held-out tasks, greedy, before and after training; 0 leaves the evaluation out."""
    every: int = Field(default=0, ge=0)
    """Also evaluate every so many steps; 0 means only before and after."""


class CheckpointConfig(Section):
    every: int = Field(default=15, ge=1)
    """Steps between checkpoints; there is always one at the end."""
    keep: int = Field(default=2, ge=1)


class SandboxConfig(Section):
    unsafe: bool = False
    """Run model-written code without isolation. Only for experiments on a machine you can lose."""


class RunConfig(Section):
    """One run, completely."""

    name: str = Field(default="run", min_length=1)
    seed: int = Field(default=0, ge=0)
    output: str = Field(default="runs", min_length=1)
    threads: int = Field(default=0, ge=0, le=1024)
    """Compute threads; 0 means one per core."""
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    sft: SftConfig = SftConfig()
    domains: DomainsConfig = DomainsConfig()
    engine: EngineConfig = EngineConfig()
    eval: EvalConfig = EvalConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    sandbox: SandboxConfig = SandboxConfig()

    @model_validator(mode="after")
    def _check(self) -> RunConfig:
        if self.rollout.temperature == 0.0:
            raise ValueError(
                "rollout.temperature is 0: greedy samples of a group are all equal and teach "
                "nothing; use a temperature above 0 (1.0 is usual)"
            )
        if self.train.algorithm in GROUP_RELATIVE and self.rollout.group_size < 2:
            raise ValueError(
                f"rollout.group_size is {self.rollout.group_size}, but {self.train.algorithm} "
                "compares the samples of a group with each other; use at least 2 (8 is usual)"
            )
        if self.rollout.min_group_size > self.rollout.group_size:
            raise ValueError(
                f"rollout.min_group_size ({self.rollout.min_group_size}) is above "
                f"rollout.group_size ({self.rollout.group_size})"
            )
        if self.engine.kind == "openai-server" and self.sft.steps:
            raise ValueError(
                "sft.steps warms a model up, but engine.kind is 'openai-server', which takes no "
                "weights; set sft.steps = 0"
            )
        return self


def load_recipe(source: str | Path, overrides: Mapping[str, str] | None = None) -> RunConfig:
    """Read a recipe by file path or by the name of a shipped one, then apply dotted overrides.

    Raises UsageError naming the file, the key, the nearest known key and the allowed values.
    """
    return resolve(_read(str(source)), overrides or {}, str(source))


def resolve(
    tree: Mapping[str, Any], overrides: Mapping[str, str], source: str = "config"
) -> RunConfig:
    """Check a nested mapping of settings, with overrides on top."""
    merged: dict[str, Any] = _copy(tree)
    for path, text in overrides.items():
        _assign(merged, path, text)
    try:
        return RunConfig.model_validate(merged)
    except ValidationError as error:
        raise UsageError(f"{source}: " + "; ".join(_explain(e) for e in error.errors())) from None


def shipped_recipes() -> list[str]:
    """Names that `load_recipe` knows without a path."""
    folder = resources.files("practicum") / "recipes"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def _read(source: str) -> dict[str, Any]:
    known = shipped_recipes()
    if source in known:
        text = (resources.files("practicum") / "recipes" / f"{source}.toml").read_text("utf-8")
    elif source.endswith(".toml") or Path(source).is_file():
        try:
            text = Path(source).read_text("utf-8-sig")
        except OSError as error:
            raise UsageError(f"cannot read the recipe {source!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"the recipe {source!r} is not a text file") from None
    else:
        hint = did_you_mean(source, known)
        raise UsageError(f"no recipe file or shipped recipe {source!r}.{hint}")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source} is not valid TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply") from None


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _copy(cast(Mapping[str, Any], value)) if isinstance(value, Mapping) else value
        for key, value in tree.items()
    }


def _assign(tree: dict[str, Any], path: str, text: str) -> None:
    """Set one dotted key; the text is read as a TOML value, or as a string if it is none."""
    *parents, leaf = path.split(".")
    for key in parents:
        child: object = tree.setdefault(key, {})
        if not isinstance(child, dict):
            raise UsageError(f"--{path}: {key!r} is a single value, not a section")
        tree = cast(dict[str, Any], child)
    try:
        tree[leaf] = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        tree[leaf] = text


def _explain(error: Mapping[str, Any]) -> str:
    location: Sequence[str | int] = error["loc"]
    path = ".".join(str(part) for part in location)
    if error["type"] == "extra_forbidden":
        return f"unknown key {path!r}.{did_you_mean(str(location[-1]), _keys_at(location[:-1]))}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message


def _keys_at(location: Sequence[str | int]) -> list[str]:
    section: type[BaseModel] = RunConfig
    for part in location:
        annotation = section.model_fields[str(part)].annotation
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        section = annotation
    return list(section.model_fields)
