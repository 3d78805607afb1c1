"""Completions over HTTP with OpenAI's client."""

from typing import Any

import pytest

from endpoint.served import serving
from practicum.testing import FakePolicy
from practicum.testing.streaming import END, FakeStreamingPolicy, fake_logprob


def echoing() -> FakeStreamingPolicy:
    return FakeStreamingPolicy(lambda prompt, rng: f"[{prompt}]{rng.randrange(1000)}")


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["[ab]"]),
        (["ab", "c"], ["[ab]", "[c]"]),
        ([97, 98], ["[ab]"]),
        ([[97, 98], [99]], ["[ab]", "[c]"]),
        ([[97, 98], "c"], ["[ab]", "[c]"]),
    ],
)
async def test_a_prompt_is_text_or_token_ids_or_a_list_of_them(prompt: Any, texts: list[str]):
    async with serving(echoing()) as served:
        reply = await served.openai.completions.create(
            model="fake", prompt=prompt, stop="]", max_tokens=50
        )
    assert [f"{choice.text}]" for choice in reply.choices] == texts
    assert [choice.index for choice in reply.choices] == list(range(len(texts)))


@pytest.mark.parametrize("echo", [False, True])
async def test_a_stream_put_together_is_the_whole_reply(echo: bool):
    asked: dict[str, Any] = {
        "prompt": ["é", "b"],
        "n": 2,
        "seed": 5,
        "echo": echo,
        "max_tokens": 20,
        "logprobs": None if echo else 2,
        "extra_body": {"return_token_ids": True},
    }
    async with serving(echoing()) as served:
        whole = await served.openai.completions.create(model="fake", **asked)
        stream = await served.openai.completions.create(
            model="fake", stream=True, stream_options={"include_usage": True}, **asked
        )
        chunks = [chunk async for chunk in stream]
    for choice in whole.choices:
        parts = [p for chunk in chunks for p in chunk.choices if p.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == choice.finish_reason == "stop"
        assert [i for part in parts for i in getattr(part, "token_ids", [])] == choice.token_ids
        assert parts[0].prompt_token_ids == choice.prompt_token_ids
        if not echo:
            told = [part.logprobs for part in parts if part.logprobs]
            for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [value for one in told for value in getattr(one, field)]
                assert joined == getattr(choice.logprobs, field)
    assert chunks[-1].usage == whole.usage
    assert whole.usage.prompt_tokens == 3
    assert len({choice.text for choice in whole.choices}) == 4


async def test_log_probabilities_name_tokens_and_say_where_they_begin():
    async with serving(FakeStreamingPolicy(lambda prompt, rng: "aé")) as served:
        reply = await served.openai.completions.create(model="fake", prompt="x", logprobs=1)
    logprobs = reply.choices[0].logprobs
    ids = [97, 0xC3, 0xA9, END]
    assert logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "<end>"]
    assert logprobs.token_logprobs == [fake_logprob(i) for i in ids]
    assert logprobs.text_offset == [0, 1, 1, 2]
    assert logprobs.top_logprobs[0] == {"a": fake_logprob(97)}


async def test_echo_repeats_the_prompt_also_of_token_ids():
    async with serving(FakeStreamingPolicy(lambda prompt, rng: "!")) as served:
        create = served.openai.completions.create
        texts = [
            choice.text
            for prompt in ("né", list("né".encode()), [[97], [98]])
            for choice in (await create(model="fake", prompt=prompt, echo=True)).choices
        ]
    assert texts == ["né!", "né!", "a!", "b!"]


async def test_sixteen_tokens_are_the_default_and_the_context_the_limit():
    policy = FakeStreamingPolicy(lambda prompt, rng: "x" * 99, context_length=40)
    async with serving(policy) as served:
        create = served.openai.completions.create
        short = await create(model="fake", prompt="p" * 10)
        tight = await create(model="fake", prompt="p" * 35)
        chat = await served.openai.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": ""}]
        )
    assert short.usage.completion_tokens == 16
    assert tight.usage.completion_tokens == 5
    assert chat.usage.total_tokens == 40, "a chat goes on as far as the context reaches"


async def test_a_policy_without_names_for_tokens_is_served_with_their_numbers():
    async with serving(FakePolicy(lambda prompt, rng: "hi")) as served:
        reply = await served.openai.completions.create(model="fake", prompt="x", logprobs=0)
    assert reply.choices[0].logprobs.tokens == ["token_id:104", "token_id:105"]
