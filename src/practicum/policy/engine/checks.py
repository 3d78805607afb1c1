"""What a request may ask for, checked before it joins a batch and could disturb it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set

from practicum.errors import UsageError
from practicum.policy.engine.penalties import LARGEST
from practicum.sampling import Sampling

_WHOLE_NUMBERS = ("max_new_tokens", "seed", "top_k", "top_logprobs")

COLDEST, HOTTEST = 1e-6, 1e6
"""Between these, logits over the temperature are far from the ends of float32."""


def check_sampling(sampling: Sampling, *, vocab_size: int, eos_ids: Set[int]) -> None:
    """Raises UsageError if a model with this vocabulary cannot sample so.

    A constraint's text is checked where it is compiled.
    """
    for name in _WHOLE_NUMBERS:
        if type(value := getattr(sampling, name)) is not int:
            raise UsageError(f"{name} must be a whole number, not {value!r}")
    stops: object = sampling.stop
    if isinstance(stops, str) or not all(type(stop) is str for stop in sampling.stop):
        raise UsageError(f"stop must be a tuple of strings, not {stops!r}")
    if "" in sampling.stop:
        raise UsageError("stop holds an empty string, which every text contains; leave it out")
    if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
        raise UsageError(
            f"temperature {sampling.temperature:g} is out of range: use {COLDEST:g} to "
            f"{HOTTEST:g}, or 0 for the likeliest token"
        )
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    _check_bias(sampling, vocab_size)
    if sampling.constraint is not None and sampling.ignore_eos:
        raise UsageError(
            "ignore_eos contradicts a constraint: once the constrained text is complete nothing "
            "but an end of text may follow; drop one of them"
        )
    if sampling.constraint is not None and not eos_ids:
        raise UsageError(
            "a constraint needs an end of text, and the tokenizer names none; set eos_token in its "
            "tokenizer_config.json"
        )


def _check_bias(sampling: Sampling, vocab_size: int) -> None:
    biases = dict(sampling.logit_bias)
    _check_ids("logit_bias", biases, vocab_size)
    if len(biases) < len(sampling.logit_bias):
        ids = [token_id for token_id, _ in sampling.logit_bias]
        twice = next(token_id for token_id in ids if ids.count(token_id) > 1)
        raise UsageError(f"logit_bias names token {twice} twice; give it one bias")
    for token_id, bias in biases.items():
        if bias > LARGEST or -math.inf < bias < -LARGEST:
            raise UsageError(
                f"logit_bias of token {token_id} is {bias}; use at most {LARGEST:g} either "
                "way (100 is as good as certain), or -inf to forbid the token"
            )
    if sum(bias == -math.inf for bias in biases.values()) == vocab_size:
        raise UsageError(
            f"logit_bias forbids all {vocab_size} tokens of the vocabulary; leave at least one"
        )


def _check_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if type(token_id) is not int:
            raise UsageError(f"{name} names token {token_id!r}; token ids are whole numbers")
        if not 0 <= token_id < vocab_size:
            raise UsageError(
                f"{name} names token {token_id}, which is outside the vocabulary "
                f"0 .. {vocab_size - 1}; token ids are those of this model's tokenizer"
            )
