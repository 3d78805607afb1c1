"""A real model: our engine against transformers on SmolLM2-135M-Instruct."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from practicum.errors import PracticumError
from practicum.policy.engine import Engine
from practicum.policy.model.hub import fetch_model
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Completion, Sampling
from practicum.types import Message

pytestmark = pytest.mark.slow

FEW_SHOT = "max(12,45,78)=78\nmax(55,23,41)=55\nmax(10,99,53)=99\n"
PROMPTS = [
    (Message("text", FEW_SHOT + "max(31,17,86)="),),
    (Message("text", FEW_SHOT + "max(3,17,9)="),),
    (Message("text", "reverse(cat)=tac\nreverse(house)=esuoh\nreverse(plan)="),),
    (Message("text", "Grüße aus"),),
    (Message("user", "What is 2+3? Answer with a number."),),
    (Message("system", "You are terse."), Message("user", "Name a colour.")),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("HF_HUB_OFFLINE", raising=False)  # the test run is offline otherwise
        try:
            yield fetch_model("smollm2-135m")
        except PracticumError as error:
            pytest.skip(f"SmolLM2 cannot be fetched here: {error}")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokens(folder: Path) -> Tokens:
    return Tokens(folder)


def engine_in(folder: Path, tokens: Tokens, dtype: torch.dtype) -> Engine:
    return Engine(load_transformer(folder, dtype), tokens, name="SmolLM2")


async def answers(engine: Engine, temperature: float, length: int) -> list[Completion]:
    calls = [
        engine.generate(engine.render(prompt), Sampling(length, temperature, seed=seed))
        for seed, prompt in enumerate(PROMPTS)
    ]
    return list(await asyncio.gather(*calls))


def differences(
    theirs: torch.nn.Module, tokens: Tokens, completions: Sequence[Completion]
) -> torch.Tensor:
    """Our log-probability minus that of a plain float32 forward, for every sampled token."""
    result: list[torch.Tensor] = []
    for prompt, done in zip(PROMPTS, completions, strict=True):
        prompt_ids = tokens.render(prompt)
        with torch.no_grad():
            logits = theirs(torch.tensor([[*prompt_ids, *done.token_ids]])).logits[0].double()
        exact = torch.log_softmax(logits, -1)[len(prompt_ids) - 1 : -1]
        exact = exact.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        result.append(torch.tensor(done.logprobs, dtype=torch.float64) - exact)
    return torch.cat(result)


def test_greedy_answers_are_those_of_transformers(
    folder: Path, tokens: Tokens, theirs: torch.nn.Module
) -> None:
    engine = engine_in(folder, tokens, torch.float32)
    for prompt, done in zip(PROMPTS, asyncio.run(answers(engine, 0.0, 16)), strict=True):
        prompt_ids = tokens.render(prompt)
        reference = theirs.generate(
            torch.tensor([prompt_ids]),
            max_new_tokens=16,
            do_sample=False,
            eos_token_id=list(tokens.eos_ids),
        )
        assert list(done.token_ids) == reference[0, len(prompt_ids) :].tolist()


def test_float32_logprobs_are_those_of_transformers(
    folder: Path, tokens: Tokens, theirs: torch.nn.Module
) -> None:
    engine = engine_in(folder, tokens, torch.float32)
    error = differences(theirs, tokens, asyncio.run(answers(engine, 1.0, 24)))
    assert error.abs().max() < 1e-4


def test_bfloat16_logprobs_stay_within_its_rounding(
    folder: Path, tokens: Tokens, theirs: torch.nn.Module
) -> None:
    engine = engine_in(folder, tokens, torch.bfloat16)
    error = differences(theirs, tokens, asyncio.run(answers(engine, 1.0, 24)))
    assert error.abs().mean() < 0.05
    assert error.abs().max() < 0.5


def test_the_chat_prompt_is_the_models_own(tokens: Tokens) -> None:
    text = tokens.decode(tokens.render(PROMPTS[4]))
    assert text.startswith("system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("user\nWhat is 2+3? Answer with a number.\nassistant\n")
    assert tokens.eos_ids == {0, 2}
