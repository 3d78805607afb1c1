"""Every path that is called exact draws from the model's own distribution.

What is expected comes from the trainer's forward pass and a full sort in float64. Draws are those
of many seeds; a G-test compares them for each prefix, and Holm's rule all of them together.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from policy.model.needs import needs_kernels
from practicum.policy.engine.live import Live
from practicum.policy.engine.stats import Stats
from practicum.policy.model.forest import plant
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.recompute import hidden_states
from practicum.sampling import Completion, Sampling

from .alone import small_tokens
from .busy import Busy

bf16 = torch.bfloat16
Counts = dict[tuple[int, ...], Counter[int]]

SIGNIFICANT = 1e-3
FEWEST_DRAWS = 500


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    return small_tokens(tmp_path_factory.mktemp("tokens"))


# --- what is expected -------------------------------------------------------------------------


def probabilities(model: Transformer, prefixes: Sequence[Sequence[int]], sampling: Sampling):
    """The documented distribution after each prefix, float64."""
    forest = plant([list(prefix) for prefix in prefixes])
    with torch.no_grad():
        ends = [int(path[-1]) for path in forest.paths]
        hidden_PD = hidden_states(model, forest)[ends].double()
        logits_PV = (hidden_PD @ model.head.double().T).numpy()
    return [_distribution(logits_V, sampling) for logits_V in logits_PV]


def _distribution(logits_V: np.ndarray, sampling: Sampling) -> np.ndarray:
    for token_id, bias in sampling.logit_bias:
        logits_V[token_id] += bias
    p_V = np.exp((logits_V - logits_V.max()) / sampling.temperature)
    order = np.argsort(-p_V, kind="stable")
    p = p_V[order] / p_V.sum()
    if sampling.top_k:
        p[sampling.top_k :] = 0
        p /= p.sum()
    before = np.cumsum(p) - p
    p[before >= sampling.top_p] = 0
    p[p < sampling.min_p * p[0]] = 0
    p_V[order] = p / p.sum()
    return p_V


def p_value(observed: Counter[int], p_V: np.ndarray) -> float:
    """Of a G-test where what is expected fewer than ten times counts as one token."""
    if any(p_V[token] == 0 for token in observed):
        return 0.0
    expected = p_V * observed.total()
    seen = np.array([observed[token] for token in range(len(p_V))])
    rare = expected < 10
    if expected[rare].sum() > 0:
        expected = np.append(expected[~rare], expected[rare].sum())
        seen = np.append(seen[~rare], seen[rare].sum())
    else:
        expected, seen = expected[~rare], seen[~rare]
    return float(stats.power_divergence(seen, expected, lambda_="log-likelihood").pvalue)


def holm(p_values: Iterable[float]) -> float:
    """The smallest p-value after correction for how many there are."""
    ordered = sorted(p_values)
    return min(1.0, *(p * (len(ordered) - place) for place, p in enumerate(ordered)))


def worst(busy: Busy, counts: Counts, sampling: Sampling, num_prefixes: int) -> float:
    often = {p: count for p, count in counts.items() if count.total() >= FEWEST_DRAWS}
    assert len(often) >= num_prefixes
    expected = probabilities(busy.recorder.model, list(often), sampling)
    return holm(map(p_value, often.values(), expected))


# --- the paths --------------------------------------------------------------------------------

PROMPTS = [
    [97 + number, *(98 + (number * place) % 7 for place in range(40))] for number in range(20)
]


class Size:
    """How many prefixes, how many draws after each."""

    def __init__(self, num_prefixes: int, num_draws: int) -> None:
        self.num_prefixes, self.num_draws = num_prefixes, num_draws


def new_busy(tokens: Tokens, **limits: int) -> Busy:
    limits = {"num_pages": 400, "num_slots": 0, "max_rows": 300, "max_step_tokens": 1000, **limits}
    busy = Busy(tokens, bf16, random.Random(0), limits)
    busy.eager.on = False
    return busy


def count(counts: Counts, lives: Iterable[Live]) -> None:
    """Every token, under what came before it."""
    for live in lives:
        prefix = live.request.prompt_ids
        for token_id in live.request.token_ids:
            counts[prefix][token_id] += 1
            prefix = (*prefix, token_id)


def draw(
    busy: Busy, prompt: Sequence[int], sampling: Sampling, num: int, *, share_rows: bool = True
) -> Counts:
    """Ask `num` times with different seeds; all at once, or as sequences that share no row."""
    counts: Counts = defaultdict(Counter)
    for seed in range(num):
        busy.add(prompt, replace(sampling, seed=seed))
        if not share_rows:
            busy.scheduler._joinable.clear()  # pyright: ignore[reportPrivateUsage]
        if (not share_rows and seed % 2000 == 1999) or seed == num - 1:
            busy.run()
            count(counts, busy.lives)
            busy.lives.clear()
            busy.told.clear()
            busy.recorder.versions.clear()
    return counts


def first_tokens(busy: Busy, sampling: Sampling, size: Size) -> Counts:
    counts: Counts = {}
    for prompt in PROMPTS[: size.num_prefixes]:
        counts |= draw(busy, prompt, sampling, size.num_draws)
    return counts


def later_tokens(
    busy: Busy, sampling: Sampling, size: Size, length: int, *, share_rows: bool = True
) -> Counts:
    """What follows each of the first tokens, of which there are `top_k`."""
    counts: Counts = {}
    longer = replace(sampling, max_new_tokens=length)
    for prompt in PROMPTS[: size.num_prefixes // sampling.top_k]:
        num = sampling.top_k * size.num_draws
        counts |= draw(busy, prompt, longer, num, share_rows=share_rows)
    return counts


def grouped(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    busy = new_busy(tokens)
    return busy, first_tokens(busy, sampling, size)


def chunked(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    busy = new_busy(tokens, max_rows=2, max_step_tokens=9)
    counts = first_tokens(busy, sampling, size)
    assert busy.core.stats.decode_rows == 0
    return busy, counts


def after_a_prefix_hit(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    busy = new_busy(tokens)
    for prompt in PROMPTS:
        busy.add(prompt, sampling)
        busy.add([*prompt[:35], 5, 6], sampling)  # a page that is shared in part
    busy.run()
    busy.lives.clear()
    counts = first_tokens(busy, sampling, size)
    assert busy.scheduler.counters.hits >= size.num_prefixes
    return busy, counts


def forked(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    busy = new_busy(tokens)
    counts = later_tokens(busy, sampling, size, 2)
    assert busy.scheduler.counters.copied_pages >= size.num_prefixes - 1
    return busy, counts


def preempted(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    busy = new_busy(tokens, num_pages=4)
    counts = later_tokens(busy, sampling, size, 2)
    assert busy.scheduler.counters.preemptions >= size.num_prefixes - 4
    return busy, counts


def each_alone(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    busy = new_busy(tokens)
    counts = later_tokens(busy, sampling, size, 2, share_rows=False)
    assert busy.core.stats.decode_rows == size.num_prefixes * size.num_draws
    return busy, counts


def speculated(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    """Guesses of prompt lookup and history; the third token mostly follows one that came true."""
    busy = new_busy(tokens)
    busy.eager.on = True
    counts = later_tokens(busy, sampling, size, 3, share_rows=False)
    num, did = size.num_prefixes * size.num_draws, busy.core.stats
    assert did.sampled_tokens == 3 * num
    assert did.decode_rows < 1.8 * num, "without guesses they would be two for each"
    return busy, counts


def speculated_in_groups(tokens: Tokens, sampling: Sampling, size: Size) -> tuple[Busy, Counts]:
    """As above, in rows of many draws of which some agree with a guess and some do not."""
    busy = new_busy(tokens)
    busy.eager.on = True
    counts: Counts = {}
    longer = replace(sampling, max_new_tokens=3)
    for prompt in PROMPTS[: size.num_prefixes // sampling.top_k]:
        draw(busy, prompt, longer, 20)  # for a history
        counts |= draw(busy, prompt, longer, sampling.top_k * size.num_draws)
    did, num = busy.core.stats, size.num_prefixes * size.num_draws
    assert did.drafted_tokens < 0.1 * did.accepted_tokens, "rows are shared"
    assert did.accepted_tokens > 0.1 * num
    return busy, counts


Path_ = Callable[[Tokens, Sampling, Size], tuple[Busy, Counts]]
FLAT = Sampling(1, temperature=4.0, top_k=20)  # 20 first tokens, each about as likely
SHARP = Sampling(1, temperature=2.0, top_k=4)
PATHS: list[tuple[Path_, Sampling]] = [
    (grouped, Sampling(1)),
    (grouped, Sampling(1, temperature=0.6)),
    (grouped, Sampling(1, top_k=20)),
    (grouped, Sampling(1, top_p=0.8)),
    (grouped, Sampling(1, min_p=0.05, temperature=1.5)),
    (grouped, Sampling(1, top_k=60, top_p=0.9, min_p=0.01, logit_bias=((97, 2.0), (5, -math.inf)))),
    (chunked, Sampling(1)),
    (after_a_prefix_hit, Sampling(1)),
    (forked, FLAT),
    (preempted, FLAT),
    (each_alone, FLAT),
    (speculated, SHARP),
    (speculated_in_groups, SHARP),
]
NAMES = [f"{path.__name__}_{number}" for number, (path, _) in enumerate(PATHS)]


@needs_kernels
@pytest.mark.parametrize(("path", "sampling"), PATHS, ids=NAMES)
def test_few_draws_follow_the_distribution(tokens: Tokens, path: Path_, sampling: Sampling) -> None:
    size = Size(20, 600) if sampling in (FLAT, SHARP) else Size(4, 1500)
    busy, counts = path(tokens, sampling, size)
    assert worst(busy, counts, sampling, 4) > SIGNIFICANT


MANY = [PATHS[number] for number in (0, 5, 6, 7, 8, 9, 10, 11, 12)]


@pytest.mark.slow
@needs_kernels
@pytest.mark.parametrize(("path", "sampling"), MANY, ids=[path.__name__ for path, _ in MANY])
def test_20_000_draws_after_each_of_20_prefixes_follow_the_distribution(
    tokens: Tokens, path: Path_, sampling: Sampling
) -> None:
    busy, counts = path(tokens, sampling, Size(20, 20_000))
    assert sum(count.total() for count in counts.values()) >= 400_000
    assert worst(busy, counts, sampling, 20) > SIGNIFICANT


@needs_kernels
def test_a_distribution_that_is_not_quite_the_models_is_noticed(tokens: Tokens) -> None:
    busy, counts = grouped(tokens, Sampling(1), Size(4, 5_000))
    assert worst(busy, counts, Sampling(1), 4) > SIGNIFICANT
    for changes in ({"temperature": 1.1}, {"top_p": 0.99}, {"top_k": 200}):
        assert worst(busy, counts, Sampling(1, **changes), 4) < SIGNIFICANT


# --- speculation changes no token -------------------------------------------------------------


@needs_kernels
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_with_guesses_the_tokens_are_those_without(tokens: Tokens, temperature: float) -> None:
    answers: list[list[Completion]] = []
    did: list[Stats] = []
    for guesses in (False, True):
        busy = new_busy(tokens)
        busy.eager.on = guesses
        for _ in range(2):  # the second time there is a history
            for prompt in PROMPTS[:6]:
                for seed in range(3):
                    busy.add(prompt, Sampling(60, temperature, seed=seed))
            busy.run()
        answers.append([live.completion() for live in busy.lives])
        did.append(busy.core.stats)
    assert answers[0] == answers[1]
    assert did[1].decode_rows < 0.8 * did[0].decode_rows
    assert did[0].accepted_tokens == 0 < did[1].accepted_tokens
