"""The rotary tables of a configuration, with the variant it asks for applied.

The one thing to know: a table never changes with the length of a sequence, or a token's keys would
depend on what comes after it. `dynamic` (NTK) rescales only beyond the declared context, and no
sequence gets there, so it is the plain table; `longrope`, which switches within it, is refused.

Sources: RoFormer (2104.09864) for the plain table, position interpolation (2306.15595) for linear,
YaRN (2309.00071), the Llama 3 report (2407.21783). Tests hold the tables equal to those of
transformers, bit for bit.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from practicum.errors import UsageError
from practicum.policy.model.config_keys import MOST, MOST_NUMBER
from practicum.policy.model.rotary_keys import ORIGINAL, Parameters
from practicum.policy.model.shape import Rotary

# Frequencies are float32 [head_size / 2], from the fastest to the slowest.


def rotary_table(parameters: Parameters, head_size: int, context: int, where: str) -> Rotary:
    """One table for heads of `head_size` in a model that declares `context` tokens.

    Raises UsageError naming a variant that does not run, or a parameter that is missing or wrong.
    """
    kind = parameters["rope_type"]
    if kind == "longrope":
        raise UsageError(
            f"{where}: rope_type 'longrope' changes with the length of a sequence, so a token's "
            f"result would depend on what follows it; these run: {', '.join(VARIANTS)}"
        )
    if not isinstance(kind, str) or kind not in VARIANTS:
        raise UsageError(
            f"{where}: rope_type {kind!r} does not run; these do: {', '.join(VARIANTS)}"
        )
    if (part := parameters.get("partial_rotary_factor")) not in (None, 1.0):
        raise UsageError(f"{where}: partial_rotary_factor is {part}; only whole heads are rotated")
    if head_size % 2:
        raise UsageError(f"{where}: heads of {head_size} numbers cannot be rotated in pairs")
    numbers = _Numbers(parameters, context, where)
    if not (base := numbers.required("rope_theta")) > 1:
        raise UsageError(f"{where}: rope_theta is {base}; it should be above 1")
    exponents = torch.arange(0, head_size, 2, dtype=torch.float) / head_size
    table, scale = VARIANTS[kind](base**exponents, numbers)
    if not (table.isfinite().all() and math.isfinite(scale)):
        raise UsageError(f"{where}: the rotary parameters of {kind!r} give infinite frequencies")
    return Rotary(tuple(table.tolist()), scale)


def context_length(declared: int, parameters: Iterable[Parameters], where: str) -> int:
    """The longest context; YaRN's is at least its original length times its factor.

    That is how the makers of Qwen mean it: a folder that adds YaRN keeps `max_position_embeddings`.
    """
    longest = declared
    for one in parameters:
        if one["rope_type"] == "yarn" and one.get("factor") is not None:
            numbers = _Numbers(one, declared, where)
            longest = max(longest, int(numbers.required("factor") * numbers.required(ORIGINAL)))
    if longest > (most := MOST["max_position_embeddings"]):
        raise UsageError(f"{where}: yarn's factor times {ORIGINAL} is above {most} tokens")
    return longest


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The parameters of one table that are numbers. Each raises UsageError where it is none."""

    parameters: Parameters
    context: int
    where: str

    def required(self, key: str) -> float:
        """A number above 0."""
        if not (number := self.optional(key)):
            kind = self.parameters["rope_type"]
            raise UsageError(f"{self.where}: rope_type {kind!r} needs {key}, a number above 0")
        return number

    def optional(self, key: str) -> float | None:
        value = self.parameters.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{self.where}: the rotary {key} is {value!r}; it should be a number")
        if not 0 <= value <= MOST_NUMBER:
            raise UsageError(
                f"{self.where}: the rotary {key} is {reprlib.repr(value)}; it should be a number "
                f"from 0 to {MOST_NUMBER}"
            )
        return float(value)


def _plain(wavelengths: Tensor, numbers: _Numbers) -> tuple[Tensor, float]:
    del numbers
    return 1.0 / wavelengths, 1.0


def _dynamic(wavelengths: Tensor, numbers: _Numbers) -> tuple[Tensor, float]:
    numbers.required("factor")
    return 1.0 / wavelengths, 1.0


def _linear(wavelengths: Tensor, numbers: _Numbers) -> tuple[Tensor, float]:
    """All positions closer together by `factor`."""
    return 1.0 / wavelengths / numbers.required("factor"), 1.0


def _llama3(wavelengths: Tensor, numbers: _Numbers) -> tuple[Tensor, float]:
    """Slow frequencies are divided by `factor`, fast ones stay, those between are blended."""
    factor, original = numbers.required("factor"), numbers.required(ORIGINAL)
    low, high = numbers.required("low_freq_factor"), numbers.required("high_freq_factor")
    if not high > low:
        raise UsageError(
            f"{numbers.where}: high_freq_factor {high} should be above low_freq_factor {low}"
        )
    plain = 1.0 / wavelengths
    turn = 2 * math.pi / plain  # tokens for one turn
    slow = turn > original / low
    between = ~(turn < original / high) & ~slow
    fast_share = (original / turn - low) / (high - low)
    divided = torch.where(slow, plain / factor, plain)
    blended = (1 - fast_share) * divided / factor + fast_share * divided
    return torch.where(between, blended, divided), 1.0


def _yarn(wavelengths: Tensor, numbers: _Numbers) -> tuple[Tensor, float]:
    """Equations 19 to 22: a ramp between divided and plain frequencies, by turns in the context."""
    original = numbers.required(ORIGINAL)
    factor = numbers.optional("factor") or numbers.context / original
    num_pairs = len(wavelengths)
    base = numbers.required("rope_theta")

    def pair(turns: float) -> float:
        """Which pair makes so many turns in the original context, as a fraction."""
        return num_pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    low = pair(numbers.optional("beta_fast") or 32)
    high = pair(numbers.optional("beta_slow") or 1)
    if numbers.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * num_pairs - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(num_pairs, dtype=torch.float) - low) / (high - low)).clamp(0, 1)
    plain_share = 1 - ramp
    divided, plain = 1.0 / (factor * wavelengths), 1.0 / wavelengths
    return divided * (1 - plain_share) + plain * plain_share, _yarn_scale(factor, numbers)


def _yarn_scale(factor: float, numbers: _Numbers) -> float:
    """What cosines and sines are multiplied by."""

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if (given := numbers.optional("attention_factor")) is not None:
        return given
    above, below = numbers.optional("mscale"), numbers.optional("mscale_all_dim")
    return scale(above) / scale(below) if above and below else scale(1)


VARIANTS: Mapping[str, Callable[[Tensor, _Numbers], tuple[Tensor, float]]] = {
    "default": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
"""Values of `rope_type` that run: from wavelengths / 2 pi to frequencies and their scale."""
