"""One call draws for every kind of request, and each as if it were alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from practicum.policy.engine.draw import NOTHING, Draw, Drawn
from practicum.policy.engine.draw import draw as draw_from
from practicum.policy.engine.penalties import seen_for
from practicum.policy.engine.uniforms import uniforms
from practicum.policy.model.head import summarised
from practicum.sampling import Sampling

VOCAB = 700
PLAIN = Sampling(9)
KINDS = {
    "plain": PLAIN,
    "cold": Sampling(9, temperature=0.6),
    "greedy": Sampling(9, temperature=0.0),
    "greedy_biased": Sampling(9, temperature=0.0, logit_bias=((3, 50.0),)),
    "top_k": Sampling(9, top_k=20),
    "top_p": Sampling(9, top_p=0.8, temperature=1.3),
    "min_p": Sampling(9, min_p=0.05),
    "all_cuts": Sampling(9, top_k=50, top_p=0.9, min_p=0.02, temperature=0.8),
    "bias": Sampling(9, logit_bias=((5, 2.0), (6, -math.inf))),
    "penalties": Sampling(9, repetition_penalty=1.3, presence_penalty=0.2),
    "cold_penalties": Sampling(9, frequency_penalty=0.5, repetition_penalty=1.5, temperature=0.5),
    "reports": Sampling(9, top_logprobs=3),
}


def some_logits(num_rows: int, vocab_size: int = VOCAB, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * 2


def draw(logits: torch.Tensor, requests: list[Draw]) -> Drawn:
    """Draw from rows of logits, each put at the temperatures that it is asked for."""
    wanted = [(request.row, request.sampling.temperature or 1.0) for request in requests]
    rows = sorted(set(wanted))
    factors = torch.tensor([1.0 / temperature for _, temperature in rows])
    scaled = logits[[row for row, _ in rows]] * factors[:, None]
    placed = [
        replace(request, row=rows.index(row)) for request, row in zip(requests, wanted, strict=True)
    ]
    return draw_from(summarised(scaled), placed)


def one(sampling: Sampling, row: int = 0, uniform: float = 0.5, **changes: object) -> Draw:
    request = Draw(row, uniform, sampling, seen_for(sampling, [1, 2, 3]))
    return replace(request, **changes)  # pyright: ignore[reportArgumentType]


def exact_logprobs(row: torch.Tensor, one: Draw) -> np.ndarray:
    """The documented distribution, in float64 and by a full sort."""
    sampling = one.sampling
    logits = row.double().numpy().copy()
    if one.seen is not None:
        for token in sorted(one.seen.prompt_ids | set(one.seen.counts)):
            rate = sampling.repetition_penalty
            logits[token] *= rate if logits[token] <= 0 else 1 / rate
        for token, count in one.seen.counts.items():
            logits[token] -= sampling.presence_penalty + count * sampling.frequency_penalty
    for token, bias in sampling.logit_bias:
        logits[token] += bias
    if one.allowed_V is not None:
        logits[~one.allowed_V] = -np.inf
    p = np.exp((logits - logits.max()) / (sampling.temperature or 1.0))
    order = np.argsort(-p, kind="stable")[: sampling.top_k or None]
    before = p[order].cumsum() - p[order]
    order = order[before < sampling.top_p * p[order].sum()]
    order = order[p[order] >= sampling.min_p * p.max()]
    kept = np.zeros_like(p)
    kept[order] = p[order]
    with np.errstate(divide="ignore"):
        return np.log(kept / kept.sum())


def entries(drawn: Drawn) -> list[tuple[object, ...]]:
    columns = (drawn.token_ids, drawn.logprobs, drawn.log_kept_mass, drawn.top_logprobs)
    return list(zip(*columns, strict=True))


def test_the_logprob_is_the_models_own_and_what_was_kept_leads_to_the_sampled_one() -> None:
    logits = some_logits(1)
    for name, sampling in KINDS.items():
        for uniform in (0.1, 0.5, 0.9):
            request = one(sampling, uniform=uniform)
            ((token_id, logprob, kept, _),) = entries(draw(logits, [request]))
            temperature = sampling.temperature or 1.0
            own = torch.log_softmax(logits[0].double() / temperature, 0)[token_id]
            assert logprob == pytest.approx(own.item(), abs=1e-5), name
            assert logprob - kept == pytest.approx(
                exact_logprobs(logits[0], request)[token_id], abs=1e-5
            ), name


def test_where_nothing_is_bent_or_cut_the_kept_mass_is_exactly_one() -> None:
    everything = np.ones(VOCAB, dtype=np.bool_)
    kinds = [PLAIN, KINDS["greedy"], KINDS["cold"], Sampling(9, top_k=VOCAB)]
    requests = [*map(one, kinds), one(PLAIN, allowed_V=everything)]
    drawn = draw(some_logits(1), requests)
    assert drawn.log_kept_mass == [0.0] * 5
    assert len({drawn.token_ids[i] for i in (0, 3, 4)}) == 1


def test_every_draw_is_as_if_it_were_alone_bit_for_bit() -> None:
    logits = some_logits(12, 1003)
    rng = np.random.default_rng(0)
    requests = [
        one(sampling, row=int(rng.integers(12)), uniform=float(rng.random()))
        for sampling in list(KINDS.values()) * 6
    ]
    together = entries(draw(logits, requests))
    alone = [
        entries(draw(logits[request.row : request.row + 1].clone(), [replace(request, row=0)]))[0]
        for request in requests
    ]
    assert together == alone


def test_the_distribution_stays_as_it_is() -> None:
    source, requests = summarised(some_logits(1)), [one(kind) for kind in KINDS.values()]
    before = source.logits.clone()
    draw_from(source, requests)
    assert torch.equal(source.logits, before)


@pytest.mark.parametrize("number", [0.0, math.nextafter(1.0, 0.0)])
def test_the_outermost_uniforms_draw_the_outermost_possible_tokens(number: float) -> None:
    logits = some_logits(50, 900)
    logits[:, :300], logits[:, 350:] = -95.0, -math.inf
    token_ids = draw(logits, [one(PLAIN, row=row, uniform=number) for row in range(50)]).token_ids
    assert set(token_ids) <= (set(range(300, 320)) if number == 0.0 else set(range(330, 350)))


def test_a_constraint_allows_nothing_else_and_its_mass_is_recorded() -> None:
    logits, allowed = some_logits(1), np.zeros(VOCAB, dtype=np.bool_)
    allowed[[4, 9, 600]] = True
    numbers = uniforms(3, 200)
    drawn = draw(logits, [one(PLAIN, uniform=u, allowed_V=allowed) for u in numbers])
    assert set(drawn.token_ids) == {4, 9, 600}
    mass = torch.softmax(logits[0].double(), 0)[[4, 9, 600]].sum().log().item()
    np.testing.assert_allclose(drawn.log_kept_mass, mass, atol=1e-6)


def test_what_one_request_has_seen_is_not_held_against_another() -> None:
    logits, severe = torch.tensor([[0.0, 40.0, 30.0, 20.0]]), Sampling(9, presence_penalty=100.0)
    requests = [one(severe) for _ in range(3)]
    for request, token_ids in zip(requests, ([], [1], [1, 2]), strict=True):
        assert request.seen is not None
        for token_id in token_ids:
            request.seen.push(token_id)
    assert draw(logits, requests).token_ids == [1, 2, 3]


def test_greedy_takes_the_likeliest_of_what_is_left() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0, 4.0]])
    greedy, allowed = Sampling(9, temperature=0.0, top_k=2), np.array([True, False, True, False])
    assert draw(logits, [one(greedy), one(greedy, allowed_V=allowed)]).token_ids == [1, 2]


def test_a_request_that_allows_nothing_does_not_disturb_its_neighbours() -> None:
    logits, nothing = some_logits(2), np.zeros(VOCAB, dtype=np.bool_)
    wrong = [one(kind, allowed_V=nothing) for kind in (PLAIN, KINDS["all_cuts"], KINDS["greedy"])]
    drawn = draw(logits, [one(PLAIN), *wrong, one(KINDS["top_p"], row=1)])
    assert drawn.token_ids[1:4] == [NOTHING] * 3
    right = draw(logits, [one(PLAIN), one(KINDS["top_p"], row=1)])
    assert [entries(drawn)[i] for i in (0, 4)] == entries(right)


def test_the_likeliest_tokens_are_reported_at_the_models_own_logprobs() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 3.0]])
    cold = Sampling(9, temperature=0.5, top_logprobs=3, top_k=1, logit_bias=((0, 9.0),))
    (top,) = draw(logits, [one(cold)]).top_logprobs
    exact = torch.log_softmax(logits[0].double() / 0.5, 0)
    assert [token for token, _ in top] == [1, 3, 2]
    assert [value for _, value in top] == pytest.approx([exact[i].item() for i in (1, 3, 2)])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_without_a_distribution_are_refused(bad: float) -> None:
    logits = some_logits(2)
    logits[1, 3] = bad
    with pytest.raises(FloatingPointError):
        draw(logits, [one(PLAIN), one(PLAIN, row=1)])


def test_draws_pass_goodness_of_fit_tests() -> None:
    """20 distributions x 20,000 draws: G-tests, corrected for their number after Holm."""
    kinds = [kind for name, kind in KINDS.items() if "greedy" not in name and name != "reports"]
    p_values: list[float] = []
    for number in range(20):
        logits = some_logits(1, seed=number)
        request = one(kinds[number % len(kinds)])
        if request.seen is not None:
            request.seen.push(7)
        token_ids: list[int] = []
        for some in uniforms(1000 + number, 20_000).reshape(-1, 1000).tolist():
            requests = [Draw(0, uniform, request.sampling, request.seen) for uniform in some]
            token_ids += draw(logits, requests).token_ids
        expected = np.exp(exact_logprobs(logits[0], request)) * len(token_ids)
        observed = np.bincount(token_ids, minlength=VOCAB)
        assert observed[expected == 0].sum() == 0
        rare = expected < 10
        cells = [(observed[~rare], expected[~rare])]
        if expected[rare].sum() > 0:
            cells.append((observed[rare].sum(keepdims=True), expected[rare].sum(keepdims=True)))
        seen, wanted = (np.concatenate(column) for column in zip(*cells, strict=True))
        p_values.append(stats.power_divergence(seen, wanted, lambda_="log-likelihood").pvalue)
    holm = [p * (20 - rank) for rank, p in enumerate(sorted(p_values))]
    assert min(holm) > 0.01, sorted(p_values)
