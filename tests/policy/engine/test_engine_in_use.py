"""What callers, trainers and broken models do to an engine."""

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from practicum.errors import PolicyDead, UsageError
from practicum.policy.engine import Engine, Stats
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Completion, Sampling
from practicum.types import Message

from .calls import PROMPTS, gather, sampling

# --- what callers do ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "changes", "named"),
    [
        ([], {}, "the prompt is empty"),
        ([1, 2, 999], {}, "token id 999 is outside the vocabulary 0 .. 258"),
        ([-1], {}, "token id -1"),
        ([1] * 120, {}, "120 tokens and 12 new ones make 132, but small holds 128"),
        ([1], {"stop": ("",)}, "empty string"),
    ],
)
async def test_a_bad_request_is_refused_and_disturbs_nobody(
    engine: Engine, prompt: list[int], changes: dict[str, object], named: str
) -> None:
    good = (PROMPTS[0], sampling(seed=3))
    answers = await asyncio.gather(
        engine.generate(*good),
        engine.generate(prompt, sampling(**changes)),
        engine.generate(*good),
        return_exceptions=True,
    )
    assert isinstance(answers[1], UsageError)
    assert named in str(answers[1])
    assert answers[0] == answers[2] == await engine.generate(*good)


async def test_a_cancelled_call_leaves_the_others_their_tokens(engine: Engine) -> None:
    calls = [(prompt, sampling(seed=seed)) for prompt in PROMPTS for seed in range(3)]
    expected = await gather(engine, calls)
    running = [asyncio.ensure_future(engine.generate(*call)) for call in calls]
    await asyncio.sleep(0)
    for number in (0, 5, 6):
        running[number].cancel()
    answers = await asyncio.gather(*running, return_exceptions=True)
    for number, (answer, wanted) in enumerate(zip(answers, expected, strict=True)):
        if number in (0, 5, 6):
            assert isinstance(answer, asyncio.CancelledError)
        else:
            assert isinstance(answer, Completion)
            assert answer.token_ids == wanted.token_ids


async def test_a_batch_that_nobody_waits_for_stops_early(engine: Engine) -> None:
    """Cancelled while the batch waits for the lock: it ends with the next step."""
    with engine.lock:
        call = asyncio.ensure_future(engine.generate(PROMPTS[5], Sampling(max_new_tokens=100)))
        for _ in range(20):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    done = await engine.generate(PROMPTS[5], Sampling(max_new_tokens=3))
    assert len(done.token_ids) <= 3
    assert engine.stats.sampled_tokens < 10


def test_it_serves_one_event_loop_after_another(engine: Engine) -> None:
    calls = [(prompt, sampling()) for prompt in PROMPTS]
    assert asyncio.run(gather(engine, calls)) == asyncio.run(gather(engine, calls))


def test_an_event_loop_that_is_stopped_leaves_the_engine_usable(engine: Engine) -> None:
    async def give_up() -> None:
        call = asyncio.ensure_future(engine.generate(PROMPTS[5], Sampling(max_new_tokens=100)))
        await asyncio.sleep(0)
        raise KeyError(call.get_name())  # asyncio.run cancels the call and its batch

    with pytest.raises(KeyError):
        asyncio.run(give_up())
    assert asyncio.run(engine.generate(PROMPTS[5], sampling())).token_ids


def test_two_event_loops_at_once_are_refused(engine: Engine) -> None:
    refused: list[BaseException] = []

    def elsewhere() -> None:
        try:
            asyncio.run(engine.generate(PROMPTS[0], sampling()))
        except UsageError as error:
            refused.append(error)

    async def here() -> None:
        await engine.generate(PROMPTS[0], sampling())
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)

    asyncio.run(here())
    assert "one event loop at a time" in str(refused[0])


# --- weights change, things break -----------------------------------------------------------


async def test_each_token_records_the_version_that_sampled_it(folder: Path, tokens: Tokens) -> None:
    """A trainer overwrites the weights between two steps; the tokens before it are not affected."""
    model = load_transformer(folder, torch.float32)
    engine = Engine(model, tokens, name="trained", version=4)
    call = (PROMPTS[3], sampling(seed=2))
    before = await engine.generate(*call)
    assert set(before.versions) == {4}

    engine.lock = lock = TrainerAtStep(engine, number=5)
    changed = await engine.generate(*call)
    assert lock.fired
    assert changed.versions == (4,) * 5 + (5,) * 7
    assert changed.token_ids[:5] == before.token_ids[:5]
    assert changed.logprobs[:5] == before.logprobs[:5]
    assert changed.logprobs[5:] != before.logprobs[5:]
    assert engine.version == 5


class TrainerAtStep:
    """A lock that, when it is taken for the n-th time, first lets a trainer have it."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine, self._number, self._lock = engine, number, threading.RLock()
        self.fired = False

    def __enter__(self) -> None:
        self._number -= 1
        if self._number == -1:
            self.fired = True
            with self._lock, torch.no_grad():
                self._engine.model.layers[1].down.mul_(-1.0)
                self._engine.publish(self._engine.version + 1)
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


async def test_a_trainer_that_holds_the_lock_holds_up_the_engine(engine: Engine) -> None:
    with engine.lock:
        call = asyncio.ensure_future(engine.generate(PROMPTS[0], sampling()))
        done, _ = await asyncio.wait([call], timeout=0.05)
        assert not done
        engine.publish(9)
    assert set((await call).versions) == {9}


async def test_a_broken_model_ends_the_engine_with_its_cause(folder: Path, tokens: Tokens) -> None:
    model = load_transformer(folder, torch.float32)
    engine = Engine(model, tokens, name="broken")
    with torch.no_grad():
        model.norm[0] = float("nan")
    answers = await asyncio.gather(
        *(engine.generate(prompt, sampling()) for prompt in PROMPTS), return_exceptions=True
    )
    for answer in answers:
        assert isinstance(answer, PolicyDead)
        assert "not finite" in str(answer)
        assert answer.__cause__ is not None
    with pytest.raises(PolicyDead, match=r"has stopped.*not finite"):
        await engine.generate(PROMPTS[0], sampling())


async def test_a_closed_engine_refuses(engine: Engine) -> None:
    collected = asyncio.ensure_future(engine.generate(PROMPTS[0], sampling()))
    await asyncio.sleep(0)
    engine.close()
    engine.close()
    with pytest.raises(PolicyDead, match="closed"):
        await engine.generate(PROMPTS[0], sampling())
    with pytest.raises(PolicyDead, match="closed"):
        await collected


def test_a_tokenizer_of_another_model_is_refused(model: Transformer, folder: Path) -> None:
    tokens = Tokens(folder)
    tokens.largest_id = 259
    with pytest.raises(UsageError, match=r"ids up to 259.*ends at 258"):
        Engine(model, tokens, name="mixed")


async def test_it_renders_and_counts(engine: Engine) -> None:
    assert engine.render([Message("text", "ab")]) == [97, 98]
    before = engine.stats
    await engine.generate([97, 98], Sampling(max_new_tokens=3))
    after = engine.stats - before
    assert (after.requests, after.prompt_tokens, after.computed_prompt_tokens) == (1, 2, 2)
    assert after.sampled_tokens == after.decode_steps + 1 == after.decode_rows + 1
    assert after.prefill_s > 0
    assert after.decode_s > 0
    assert before + after == engine.stats
    assert before == Stats()
