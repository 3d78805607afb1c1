"""Distributions and draws: the kernels beside the plain form, the plain form beside softmax."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from practicum.policy.model import ops
from practicum.policy.model.head import Distribution, distribution, summarised
from practicum.policy.model.native import kernels

from .needs import needs_kernels, threads, without_kernels

bf16 = torch.bfloat16
D = 64
BELOW_ONE = math.nextafter(1.0, 0.0)
SLACK = 3e-7
"""How far sums of float32 exponentials may move a border between two tokens, of a total of 1."""


def normal(*size: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = bf16) -> Tensor:
    return (torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.float64)


def uniform(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


VOCABULARIES = [1, 15, 256, 257, 259, 1000, 49_152]


@needs_kernels
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_kernel_summarises_what_the_plain_form_does(
    vocabulary: int, softcap: float | None
) -> None:
    hidden, head = normal(9, D), normal(vocabulary, D, seed=1, scale=0.5)
    temperatures = torch.tensor([1.0, 0.7, 1.3] * 3, dtype=torch.float64)
    found = distribution(hidden, head, temperatures, softcap)
    logits = ops.linear(hidden, head)
    if softcap is not None:
        logits = ops.softcap(logits, softcap)
    logits = logits * (1 / temperatures).float()[:, None]
    # The tanh of the C library is another than that of torch, by an ulp or two of the logits.
    torch.testing.assert_close(found.logits, logits, rtol=0, atol=0 if softcap is None else 3e-6)
    plain = summarised(found.logits)
    assert torch.equal(found.peaks, plain.peaks)
    torch.testing.assert_close(found.totals, plain.totals, rtol=1e-6, atol=0)
    exact = found.logits.double().logsumexp(-1)
    for values in (found.log_total, plain.log_total):
        assert values.dtype == torch.float64
        torch.testing.assert_close(values, exact, rtol=0, atol=3e-7)


@needs_kernels
@pytest.mark.parametrize("vocabulary", [259, 49_152])
def test_a_row_has_the_same_bits_whatever_stands_beside_it(vocabulary: int) -> None:
    hidden, head = normal(130, D), normal(vocabulary, D, seed=1)
    whole = distribution(hidden, head, ones(130))
    for count in (1, 2, 17, 64, 96, 97, 129):
        part = distribution(hidden[:count], head, ones(count))
        for name in ("logits", "peaks", "totals", "log_total"):
            assert torch.equal(getattr(part, name), getattr(whole, name)[:count]), (count, name)


@needs_kernels
def test_one_thread_and_two_give_the_same_bits() -> None:
    hidden, head = normal(40, D), normal(5000, D, seed=1)
    found: list[Distribution] = []
    for count in (1, 2):
        with threads(count):
            found.append(distribution(hidden, head, ones(40)))
    for name in ("logits", "peaks", "totals", "log_total"):
        assert torch.equal(getattr(found[0], name), getattr(found[1], name)), name


def check_draws(source: Distribution, rows: Tensor, uniforms: Tensor, tokens: Tensor) -> float:
    """That draws invert the exact cumulative distribution; the share of them beside no border."""
    share = source.logits.double().softmax(-1)
    up_to = share.cumsum(-1)
    after, own = up_to[rows, tokens], share[rows, tokens]
    assert (own > 0).all()
    assert (uniforms <= after + SLACK).all()
    assert (uniforms >= after - own - SLACK).all()
    near = (up_to[rows] - uniforms[:, None]).abs().amin(-1) < SLACK
    clear = (up_to[rows] <= uniforms[:, None]).sum(-1)
    assert torch.equal(tokens[~near], clear[~near])
    return float((~near).double().mean())


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(("vocabulary", "scale"), [(1, 1.0), (259, 1.0), (259, 8.0), (49_152, 2.0)])
def test_draws_invert_the_cumulative_distribution(
    vocabulary: int, scale: float, plain: bool
) -> None:
    logits = normal(5, vocabulary, scale=scale, dtype=torch.float32)
    source = summarised(logits)
    rows = torch.randint(5, (300,), generator=torch.Generator().manual_seed(3))
    uniforms = uniform(300)
    if plain:
        with without_kernels():
            tokens = source.draw(rows, uniforms)
    else:
        tokens = source.draw(rows, uniforms)
    assert check_draws(source, rows, uniforms, tokens) > 0.9 or vocabulary == 1


@needs_kernels
@given(
    seed=st.integers(0, 1000),
    vocabulary=st.sampled_from([3, 259, 700]),
    dead=st.floats(0, 1),
    scale=st.sampled_from([0.1, 3.0, 30.0]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_kernel_draws_what_the_plain_form_draws(
    seed: int, vocabulary: int, dead: float, scale: float
) -> None:
    logits = normal(1, vocabulary, seed=seed, scale=scale, dtype=torch.float32)
    killed = uniform(vocabulary, seed + 1) < dead
    killed[seed % vocabulary] = False
    logits[0, killed] = -torch.inf
    source = summarised(logits)
    ends = torch.tensor([0.0, 2.0**-54, BELOW_ONE, 1.0], dtype=torch.float64)
    uniforms = torch.cat((uniform(50, seed + 2), ends))
    rows = torch.zeros(len(uniforms), dtype=torch.int64)
    found = source.draw(rows, uniforms)
    with without_kernels():
        plain = source.draw(rows, uniforms)
    for tokens in (found, plain):
        assert not killed[tokens].any(), "a token of probability 0 was drawn"
    up_to = logits.double().softmax(-1)[0].cumsum(-1)
    clear = (up_to - uniforms[:, None]).abs().amin(-1) > SLACK
    assert torch.equal(found[clear], plain[clear])


@pytest.mark.parametrize("plain", [False, True])
def test_a_draw_at_the_very_beginning_or_end_is_a_token_that_can_be(plain: bool) -> None:
    # Blocks of next to nothing before and after the one that holds the mass.
    logits = torch.full((1, 1024), -torch.inf)
    logits[0, 40], logits[0, 300], logits[0, 301], logits[0, 800] = -95.0, 0.0, 1.0, -200.0
    source = summarised(logits)
    rows = torch.zeros(3, dtype=torch.int64)
    uniforms = torch.tensor([0.0, 2.0**-54, BELOW_ONE], dtype=torch.float64)
    if plain:
        with without_kernels():
            tokens = source.draw(rows, uniforms).tolist()
    else:
        tokens = source.draw(rows, uniforms).tolist()
    assert tokens == [40, 300, 301]


@needs_kernels
@pytest.mark.parametrize("vocabulary", [97, 256, 257, 259, 1000])
def test_what_is_not_a_number_shows_in_the_total(vocabulary: int) -> None:
    head = normal(vocabulary, D, seed=1)
    hidden = normal(3, D)
    hidden[1] = torch.nan
    finite = distribution(hidden, head, ones(3)).log_total.isfinite()
    assert finite.tolist() == [True, False, True], "and only there"
    for token in {0, vocabulary // 2, vocabulary - 1}:
        broken = head.clone()
        broken[token, 3] = torch.nan
        found = distribution(normal(3, D), broken, ones(3))
        assert not found.log_total.isfinite().any(), token
        assert not summarised(found.logits).log_total.isfinite().any(), token


@needs_kernels
def test_an_infinite_logit_shows_in_the_total() -> None:
    head = normal(300, D, seed=1)
    head[7] = 3e38
    found = distribution(normal(3, D).abs() + 1, head, ones(3))
    assert not found.log_total.isfinite().any()


def test_the_likeliest_is_the_first_of_equals() -> None:
    logits = torch.zeros(2, 700)
    logits[0, [5, 300, 699]] = 2.0
    logits[1, [600, 601]] = 1.0
    assert summarised(logits).likeliest(torch.tensor([1, 0, 1])).tolist() == [600, 5, 600]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probabilities_are_those_of_log_softmax(dtype: torch.dtype, temperature: float) -> None:
    hidden, head = normal(6, D, dtype=dtype), normal(259, D, seed=1, dtype=dtype)
    found = distribution(hidden, head, temperature * ones(6))
    rows, tokens = torch.tensor([0, 3, 3, 5]), torch.tensor([0, 258, 17, 100])
    exact = (hidden.double() @ head.double().T / temperature).log_softmax(-1)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12  # logits are some tens
    torch.testing.assert_close(
        found.logprobs(rows, tokens), exact[rows, tokens], rtol=0, atol=tolerance
    )


@needs_kernels
def test_nothing_is_drawn_where_nothing_can_be() -> None:
    source = summarised(torch.full((1, 300), -torch.inf))
    drawn = kernels.draw(source.logits, source.peaks, source.totals, torch.tensor([0]), ones(1) / 2)
    assert drawn.tolist() == [-1]
