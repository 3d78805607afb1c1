"""What comes in pieces is, joined, what comes at once; who stops listening costs nothing more."""

import asyncio
import contextlib
import gc

import pytest

from practicum.errors import PolicyDead, UsageError
from practicum.policy.engine import Engine, EngineOptions
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.sampling import Constraint, Delta, Sampling
from practicum.types import StopReason

from .calls import PROMPTS, gather, sampling

EMOJI = Constraint("regex", "[😀🚀é漢]{6}")
KINDS: list[dict[str, object]] = [
    {},
    {"max_new_tokens": 1},
    {"temperature": 0.0, "top_logprobs": 3},
    {"stop": ("e", "ab")},
    {"logit_bias": ((ord("a"), 9.0), (ord("b"), 9.0)), "stop": ("bb", "abab")},
    {"logit_bias": tuple((byte, 8.0) for byte in range(128, 256))},  # hardly ever a character
    {"constraint": EMOJI, "max_new_tokens": 30},
    {"top_k": 5, "repetition_penalty": 1.5},
]


async def heard(engine: Engine, prompt: list[int], asked: Sampling) -> list[Delta]:
    return [delta async for delta in engine.stream(prompt, asked)]


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
async def test_a_stream_joined_is_the_completion(
    model: Transformer, tokens: Tokens, kind: dict[str, object], speculate: bool
) -> None:
    engine = Engine(model, tokens, name="small", options=EngineOptions(speculate=speculate))
    calls = [(prompt, sampling(seed=seed, **kind)) for prompt in PROMPTS for seed in range(3)]
    streams = await asyncio.gather(*(heard(engine, *call) for call in calls))
    for deltas, whole in zip(streams, await gather(engine, calls), strict=True):
        joined = Delta.joined(deltas)
        assert joined.token_ids == whole.token_ids
        assert joined.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
        assert [[t for t, _ in top] for top in joined.top_logprobs] == [
            [t for t, _ in top] for top in whole.top_logprobs
        ]
        assert joined.text == whole.text
        assert [delta.stop_reason for delta in deltas] == [
            *[None] * (len(deltas) - 1),
            whole.stop_reason,
        ]


async def test_no_piece_of_text_ends_within_a_character(engine: Engine) -> None:
    asked = sampling(constraint=EMOJI, max_new_tokens=30)
    deltas = await heard(engine, PROMPTS[0], asked)
    pieces = [delta.text for delta in deltas]
    assert len("".join(pieces)) == 6
    assert set("".join(pieces)) <= set("😀🚀é漢")
    assert sum(map(bool, pieces)) >= 6, "text waits for no more than it must"
    assert len(deltas) == len(Delta.joined(deltas).token_ids) > 10


async def test_no_piece_of_a_stop_string_is_told(engine: Engine) -> None:
    """Only a and b are likely: beginnings of the stop string come and go."""
    bias = ((ord("a"), 400.0), (ord("b"), 400.0))
    asked = [
        sampling(logit_bias=bias, stop=("aabba",), max_new_tokens=60, seed=seed, temperature=30.0)
        for seed in range(10)
    ]
    streams = await asyncio.gather(*(heard(engine, PROMPTS[3], each) for each in asked))
    stopped = [deltas for deltas in streams if deltas[-1].stop_reason is StopReason.STOP_STRING]
    assert len(stopped) > 3
    for deltas in stopped:
        told = Delta.joined(deltas)
        said = engine.tokens.decode(told.token_ids)
        assert told.text == said[: said.index("aabba")]


def is_idle(engine: Engine) -> bool:
    scheduler = engine._core.scheduler  # pyright: ignore[reportPrivateUsage]
    scheduler.check()
    return not (scheduler.running or scheduler.waiting)


@pytest.mark.parametrize("how", ["close", "cancel", "forget"])
async def test_who_stops_listening_ends_the_call_and_frees_its_pages(
    engine: Engine, how: str
) -> None:
    asked = Sampling(max_new_tokens=100, ignore_eos=True)
    begun = asyncio.Event()

    async def listen() -> None:
        stream = engine.stream(PROMPTS[3], asked)
        async for _ in stream:
            begun.set()
            if how == "close":
                await stream.aclose()
                return
            if how == "forget":
                return

    task = asyncio.ensure_future(listen())
    await begun.wait()
    if how == "cancel":
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    del task
    gc.collect()
    for _ in range(3):  # a generator that is forgotten is closed by the event loop a little later
        await engine.generate(PROMPTS[4], sampling())
    assert engine.stats.sampled_tokens < 100
    assert is_idle(engine)


async def test_a_stream_that_is_never_listened_to_asks_for_nothing(engine: Engine) -> None:
    stream = engine.stream(PROMPTS[0], sampling())
    await stream.aclose()
    assert engine.stats.requests == 0


async def test_a_bad_request_is_refused_with_the_first_piece(engine: Engine) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        await anext(engine.stream([], sampling()))


async def test_what_was_reused_is_told_from_the_first_piece_on(engine: Engine) -> None:
    await engine.generate(PROMPTS[0], sampling())
    deltas = await heard(engine, PROMPTS[0], sampling(seed=5))
    assert {delta.reused_tokens for delta in deltas} == {len(PROMPTS[0]) - 1}


async def test_a_stream_of_an_engine_that_ends_raises(engine: Engine) -> None:
    stream = engine.stream(PROMPTS[3], Sampling(max_new_tokens=100, ignore_eos=True))
    await anext(stream)
    with engine.lock:  # so that it cannot have come to its end
        closing = asyncio.ensure_future(asyncio.to_thread(engine.close))
        await asyncio.sleep(0)
    with pytest.raises(PolicyDead, match="closed"):
        async for _ in stream:
            pass
    await closing
