"""What the engine gives: compared with transformers, and with itself in other company."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import AutoModelForCausalLM

from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.sampling import Sampling
from practicum.types import StopReason

from .calls import PROMPTS, Call, gather, sampling


@pytest.fixture(scope="module")
def theirs(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def exact_logprobs(theirs: torch.nn.Module, prompt: Sequence[int], answer: Sequence[int]):
    """Log-probabilities of all tokens [answer, V] by one plain forward of transformers."""
    with torch.no_grad():
        logits = theirs(torch.tensor([[*prompt, *answer]])).logits[0].double()
    return torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]


# --- what comes out -------------------------------------------------------------------------


async def test_greedy_is_that_of_transformers_token_for_token(
    engine: Engine, theirs: torch.nn.Module
) -> None:
    ours = await gather(engine, [(prompt, sampling(temperature=0.0)) for prompt in PROMPTS])
    for prompt, completion in zip(PROMPTS, ours, strict=True):
        reference = theirs.generate(
            torch.tensor([prompt]),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=list(engine.tokens.eos_ids),
            pad_token_id=256,
        )
        assert list(completion.token_ids) == reference[0, len(prompt) :].tolist()


async def test_logprobs_are_those_of_transformers(engine: Engine, theirs: torch.nn.Module) -> None:
    calls = [(p, sampling(seed=seed)) for p in PROMPTS for seed in range(4)]
    for (prompt, _), done in zip(calls, await gather(engine, calls), strict=True):
        exact = exact_logprobs(theirs, prompt, done.token_ids)
        exact = exact.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(done.logprobs, exact, atol=1e-4)


async def test_logprobs_are_at_the_sampling_temperature_and_greedy_at_one(
    engine: Engine, theirs: torch.nn.Module
) -> None:
    for temperature in (0.5, 2.0, 0.0):
        done = await engine.generate(PROMPTS[0], sampling(temperature=temperature))
        exact = exact_logprobs(theirs, PROMPTS[0], done.token_ids)
        scaled = torch.log_softmax(exact / (temperature or 1.0), -1)
        scaled = scaled.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        np.testing.assert_allclose(done.logprobs, scaled, atol=1e-4)


async def test_draws_follow_the_models_distribution(
    model: Transformer, tokens: Tokens, theirs: torch.nn.Module
) -> None:
    """20,000 seeds: the first token, and the second after the commonest first."""
    engine = Engine(
        model,
        tokens,
        name="small",
        options=EngineOptions(max_batch_rows=5000, max_step_tokens=6000),
    )
    num_draws = 20_000
    calls = [(PROMPTS[0], Sampling(max_new_tokens=2, seed=seed)) for seed in range(num_draws)]
    done = await gather(engine, calls)
    first = Counter(c.token_ids[0] for c in done)
    common = first.most_common(1)[0][0]
    second = Counter(c.token_ids[1] for c in done if c.token_ids[0] == common)
    assert second.total() > 1000
    exact = exact_logprobs(theirs, PROMPTS[0], [common, 0]).exp().numpy()
    for counts, probabilities in ((first, exact[0]), (second, exact[1])):
        expected = probabilities * counts.total()
        observed = np.array([counts[token] for token in range(len(expected))])
        rare = expected < 10
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
        fit = stats.power_divergence(observed, expected, lambda_="log-likelihood")
        assert len(observed) > 10
        assert fit.pvalue > 0.001


# --- a request's tokens are its own ---------------------------------------------------------

calls_in_a_batch = st.lists(
    st.tuples(
        st.integers(0, len(PROMPTS) - 1),
        st.integers(0, 5),
        st.sampled_from([1, 3, 12]),
        st.sampled_from([0.0, 0.7, 1.0]),
        st.sampled_from([(), ("e",), ("a", "\n")]),
    ),
    min_size=1,
    max_size=14,
)


@settings(deadline=None, max_examples=40)
@given(calls_in_a_batch)
def test_the_same_request_gives_the_same_tokens_in_any_batch(
    model: Transformer, tokens: Tokens, drawn: list[tuple[int, int, int, float, tuple[str, ...]]]
) -> None:
    together = Engine(model, tokens, name="together")
    alone = Engine(model, tokens, name="alone", options=EngineOptions(max_batch_rows=1))
    calls: list[Call] = [
        (PROMPTS[prompt], Sampling(length, temperature, stop, seed))
        for prompt, seed, length, temperature, stop in drawn
    ]
    shared = asyncio.run(gather(together, calls))
    separate = asyncio.run(gather(alone, calls))
    for one, other in zip(shared, separate, strict=True):
        assert dataclasses.replace(one, logprobs=()) == dataclasses.replace(other, logprobs=())
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert together.stats.sampled_tokens == alone.stats.sampled_tokens
    assert together.stats.decode_rows <= alone.stats.decode_rows


async def test_a_batch_is_bit_identical_in_any_order_of_calls(engine: Engine) -> None:
    calls = [(prompt, sampling(seed=seed)) for prompt in PROMPTS for seed in range(4)]
    forwards = await gather(engine, calls)
    backwards = await gather(engine, calls[::-1])
    assert forwards == backwards[::-1]


async def test_batches_are_cut_alike_in_any_order_of_calls(
    model: Transformer, tokens: Tokens
) -> None:
    """Otherwise samples of a group would share a batch in one run and not in its repetition."""
    calls = [(prompt, sampling(seed=seed)) for prompt in PROMPTS for seed in range(4)]
    interleaved = [call for seed in range(4) for call in calls[seed::4]]
    counts: set[tuple[int, int]] = set()
    for order in (calls, calls[::-1], interleaved):
        engine = Engine(model, tokens, name="small", options=EngineOptions(max_batch_rows=5))
        await gather(engine, order)
        counts.add((engine.stats.computed_prompt_tokens, engine.stats.decode_rows))
    assert len(counts) == 1


async def test_seeds_differ(engine: Engine) -> None:
    done = await gather(engine, [(PROMPTS[0], sampling(seed=seed)) for seed in range(20)])
    assert len({completion.token_ids for completion in done}) > 15


async def test_samples_that_agree_share_a_row(engine: Engine) -> None:
    """Eight greedy samples are one row; prompts with a common beginning compute it once."""
    await gather(engine, [(p, sampling(temperature=0.0)) for p in PROMPTS[:2] for _ in range(8)])
    did = engine.stats
    assert did.requests == 16
    assert did.prompt_tokens == 8 * (len(PROMPTS[0]) + len(PROMPTS[1]))
    assert did.computed_prompt_tokens == len(
        {tuple(p[:n]) for p in PROMPTS[:2] for n in range(1, len(p) + 1)}
    )
    assert did.decode_rows <= 2 * 11
    assert did.decode_steps <= 12


# --- how it ends ----------------------------------------------------------------------------


async def test_every_end_token_ends(model: Transformer, tokens: Tokens, folder: Path) -> None:
    """Declared ends are honoured one and all: here some common bytes."""
    common = frozenset(b"etaoin 0123456789\n")
    declared = Tokens(folder)
    declared.eos_ids = common
    plain = Engine(model, tokens, name="plain")
    ended = Engine(model, declared, name="ended")
    calls = [(PROMPTS[0], sampling(max_new_tokens=60, seed=seed)) for seed in range(40)]
    for free, cut in zip(await gather(plain, calls), await gather(ended, calls), strict=True):
        ends = [place for place, token in enumerate(free.token_ids) if token in common]
        if not ends:
            continue
        assert cut.stop_reason == StopReason.EOS
        assert cut.token_ids == free.token_ids[: ends[0] + 1]
        assert cut.text == tokens.decode(free.token_ids[: ends[0]])
        assert len(cut.logprobs) == len(cut.versions) == ends[0] + 1


async def test_a_stop_string_cuts_the_text_and_keeps_its_tokens(
    engine: Engine, tokens: Tokens
) -> None:
    free = await engine.generate(PROMPTS[3], sampling(seed=1))
    assert free.stop_reason == StopReason.MAX_TOKENS
    assert len(free.token_ids) == 12
    stop = tokens.decode(free.token_ids[4:7])
    cut = await engine.generate(PROMPTS[3], sampling(seed=1, stop=("unlikely", stop)))
    assert cut.stop_reason == StopReason.STOP_STRING
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
    assert stop not in cut.text
    assert (cut.text + stop) == tokens.decode(cut.token_ids)[: len(cut.text + stop)]
    assert stop not in tokens.decode(cut.token_ids[:-1]), "it went on after the stop was complete"


async def test_the_context_ends_a_completion(engine: Engine) -> None:
    prompt = [ord("x")] * (engine.context_length - 3)
    ends = [(await engine.generate(prompt, Sampling(max_new_tokens=n))).stop_reason for n in (3, 2)]
    assert ends == [StopReason.CONTEXT_END, StopReason.MAX_TOKENS]
