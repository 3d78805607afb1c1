"""What cannot be sampled is refused with what, where and what to do."""

import math

import pytest

from practicum.errors import UsageError
from practicum.policy.engine.checks import check_sampling
from practicum.sampling import Constraint, Sampling

DIGITS = Constraint("regex", "[0-9]+")


def test_what_can_be_sampled_passes() -> None:
    fine = Sampling(
        9, logit_bias=((0, 1.5), (9, -math.inf)), stop_token_ids=(3,), top_k=99, constraint=DIGITS
    )
    check_sampling(fine, vocab_size=10, eos_ids={2})


@pytest.mark.parametrize(
    ("sampling", "why"),
    [
        (Sampling(9, stop=("a", "")), "empty string"),
        (Sampling(9, stop_token_ids=(10,)), r"stop_token_ids names token 10.* 0 \.\. 9"),
        (Sampling(9, logit_bias=((-1, 2.0),)), "logit_bias names token -1"),
        (Sampling(9, logit_bias=((1, 2.0), (1, 3.0))), "token 1 twice"),
        (Sampling(9, logit_bias=((1, math.inf),)), "token 1 is inf"),
        (Sampling(9, logit_bias=((1, -1e35),)), "or -inf to forbid"),
        (Sampling(9, logit_bias=tuple((i, -math.inf) for i in range(10))), "forbids all 10"),
        (Sampling(9, temperature=1e-9), "or 0 for the likeliest"),
        (Sampling(9, temperature=1e9), "temperature 1e"),
        (Sampling(9, constraint=DIGITS, ignore_eos=True), "ignore_eos contradicts"),
    ],
)
def test_what_cannot_be_sampled_is_refused(sampling: Sampling, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check_sampling(sampling, vocab_size=10, eos_ids={2})


def test_a_constraint_without_any_end_of_text_is_refused() -> None:
    with pytest.raises(UsageError, match="eos_token"):
        check_sampling(Sampling(9, constraint=DIGITS), vocab_size=10, eos_ids=frozenset())
