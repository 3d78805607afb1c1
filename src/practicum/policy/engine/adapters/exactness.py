"""Which log-probs can be trained on: those of the sampled token, at the temperature of sampling.

Engines disagree on what a log-prob is. vLLM reports that of the untouched logits, or, started with
`--logprobs-mode processed_logprobs`, that of the very distribution it draws from, truncation and
all. SGLang reports it at the temperature before truncation. `measure` finds out by asking: the
difference of two tokens' log-probs halves when the temperature doubles, or it does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

from practicum.errors import InfraError
from practicum.sampling import Sampling


class Scale(StrEnum):
    """What the reported log-probs are of."""

    DRAWN = "drawn"
    """The distribution that tokens are drawn from: at the temperature, after truncation."""
    TEMPERED = "tempered"
    """At the temperature, before truncation, and the kept mass is reported too."""
    RAW = "raw"
    """The logits as they left the model, whatever temperature, penalties and biases say."""
    NONE = "none"
    """No log-probs are reported."""


def truncates(sampling: Sampling) -> bool:
    """Whether unlikely tokens are cut off before sampling. Greedy sampling has nothing to cut."""
    return sampling.temperature > 0 and bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)


def why_inexact(scale: Scale, sampling: Sampling) -> str | None:
    """Why completions of this sampling cannot be trained on; None if they can."""
    if scale is Scale.NONE:
        return "it reports no log-probs of the sampled tokens"
    if truncates(sampling) and scale is not Scale.TEMPERED:
        return "it does not report how much probability top_k, top_p and min_p kept; leave them off"
    changed = sampling.temperature not in (0.0, 1.0) or bool(
        sampling.repetition_penalty != 1.0
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.logit_bias
    )
    if changed and scale is Scale.RAW:
        return (
            "its log-probs are those of temperature 1 without penalties and biases; sample so, or "
            "start vLLM with `--logprobs-mode processed_logprobs`"
        )
    return None


Ask = Callable[[float], Awaitable[Mapping[int | str, float]]]
"""The likeliest first tokens after some fixed prompt and their log-probs, at a temperature."""


async def measure(ask: Ask, *, engine: str) -> Scale:
    """RAW, or DRAWN for log-probs that follow the temperature. Two short requests."""
    once, twice = await ask(1.0), await ask(2.0)
    shared = sorted(set(once) & set(twice), key=lambda token: once[token])
    if len(shared) < 2 or once[shared[-1]] - once[shared[0]] < 1e-2:
        raise InfraError(
            f"cannot tell what the log-probs of {engine} mean: it reports {len(shared)} tokens of "
            "one distribution; at least two that differ are needed"
        )
    apart = [values[shared[-1]] - values[shared[0]] for values in (once, twice)]
    return Scale.RAW if abs(apart[1] - apart[0]) < abs(apart[1] - apart[0] / 2) else Scale.DRAWN
