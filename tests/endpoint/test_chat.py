"""Chat over HTTP with OpenAI's client: what streams is what comes whole, and it is exact."""

from __future__ import annotations

from typing import Any

import pytest

from endpoint.served import Served, serving
from practicum.endpoint import Delta
from practicum.sampling import Constraint
from practicum.testing import FakePolicy
from practicum.testing.streaming import END, FakeStreamingPolicy, fake_logprob

CHAT: Any = [{"role": "user", "content": "grüß mich"}]


async def streamed(served: Served, **options: Any) -> list[Any]:
    stream = await served.openai.chat.completions.create(
        model="fake", messages=CHAT, stream=True, **options
    )
    return [chunk async for chunk in stream]


def folded(chunks: list[Any], index: int) -> dict[str, Any]:
    """One choice of a stream, put together."""
    parts = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[0].delta.role == "assistant"
    return {
        "content": "".join(part.delta.content or "" for part in parts),
        "finish_reason": parts[-1].finish_reason,
        "token_ids": [i for part in parts for i in getattr(part, "token_ids", None) or []],
        "logprobs": [e for part in parts if part.logprobs for e in part.logprobs.content],
    }


def of_choice(choice: Any) -> dict[str, Any]:
    return {
        "content": choice.message.content,
        "finish_reason": choice.finish_reason,
        "token_ids": choice.token_ids,
        "logprobs": choice.logprobs.content,
    }


@pytest.mark.parametrize("options", [{}, {"stop": ["Welt", "!"]}, {"max_tokens": 4}, {"n": 3}])
async def test_a_stream_put_together_is_the_whole_reply(options: dict[str, Any]):
    policy = FakeStreamingPolicy(lambda prompt, rng: f"Grüße {rng.random():.3f} 👋 Welt!")
    asked = {
        "seed": 7,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"return_token_ids": True},
        **options,
    }
    async with serving(policy) as served:
        whole = await served.openai.chat.completions.create(model="fake", messages=CHAT, **asked)
        chunks = await streamed(served, stream_options={"include_usage": True}, **asked)
    n = options.get("n", 1)
    assert [of_choice(choice) for choice in whole.choices] == [folded(chunks, i) for i in range(n)]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({choice.message.content for choice in whole.choices}) == n, "a seed for each choice"
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids


async def test_text_arrives_in_whole_characters_while_it_grows():
    policy = FakeStreamingPolicy(lambda prompt, rng: "né👋")
    async with serving(policy) as served:
        chunks = await streamed(served)
    pieces = [chunk.choices[0].delta.content for chunk in chunks]
    assert [piece for piece in pieces if piece] == ["n", "é", "👋"]


async def test_every_token_has_its_log_probability_and_its_bytes():
    async with serving(FakeStreamingPolicy(lambda prompt, rng: "é")) as served:
        reply = await served.openai.chat.completions.create(
            model="fake", messages=CHAT, logprobs=True, top_logprobs=1
        )
    entries = reply.choices[0].logprobs.content
    assert [(e.token, e.bytes) for e in entries] == [
        ("bytes:\\xc3", [0xC3]),
        ("bytes:\\xa9", [0xA9]),
        ("<end>", list(b"<end>")),
    ]
    assert [e.logprob for e in entries] == [fake_logprob(i) for i in (0xC3, 0xA9, END)]
    assert [len(e.top_logprobs) for e in entries] == [1, 1, 1]


async def test_usage_counts_the_prompt_once_and_says_what_was_reused():
    policy = FakeStreamingPolicy(lambda prompt, rng: "four")
    async with serving(policy) as served:
        reply = await served.openai.chat.completions.create(model="fake", messages=CHAT, n=2)
        total = await served.metric("practicum_sampled_tokens_total")
        reused = await served.metric("practicum_reused_tokens_total")
    num_prompt = len(policy.render_chat(CHAT, None))
    usage = reply.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (num_prompt, 2 * len(b"four\0"))
    assert usage.total_tokens == num_prompt + 10
    assert usage.prompt_tokens_details.cached_tokens == num_prompt // 2
    assert (total, reused) == (10, num_prompt // 2)


async def test_the_completion_ends_for_the_reason_it_ended():
    async with serving(FakeStreamingPolicy(lambda prompt, rng: "one two")) as served:
        create = served.openai.chat.completions.create
        ends = {
            (await create(model="fake", messages=CHAT, **options)).choices[0].finish_reason
            for options in ({}, {"stop": "two"})
        }
        cut = await create(model="fake", messages=CHAT, max_completion_tokens=3)
    assert ends == {"stop"}
    assert (cut.choices[0].finish_reason, cut.choices[0].message.content) == ("length", "one")


async def test_what_is_asked_reaches_the_policy():
    policy = FakeStreamingPolicy(lambda prompt, rng: "x")
    async with serving(policy) as served:
        await served.openai.chat.completions.create(
            model="fake",
            messages=CHAT,
            max_tokens=9,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            stop=["a", "b"],
            presence_penalty=0.1,
            frequency_penalty=0.2,
            logit_bias={"7": -100},
            logprobs=True,
            top_logprobs=5,
            extra_body={
                "top_k": 4,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "stop_token_ids": [9],
                "ignore_eos": True,
            },
        )
    (sampling,) = policy.samplings
    assert sampling == type(sampling)(
        max_new_tokens=9,
        temperature=0.5,
        stop=("a", "b"),
        seed=3,
        top_k=4,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias=((7, -100.0),),
        stop_token_ids=(9,),
        ignore_eos=True,
        top_logprobs=5,
    )


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("options", "constraint"),
    [
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": {"type": "json_object"}},
            Constraint("json_schema", '{"type": "object"}'),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            Constraint(
                "json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}'
            ),
        ),
        (
            {"extra_body": {"structured_outputs": {"regex": "[a-z]+"}}},
            Constraint("regex", "[a-z]+"),
        ),
        (
            {"extra_body": {"structured_outputs": {"choice": ["yes", "no"]}}},
            Constraint("choice", '["yes", "no"]'),
        ),
        (
            {"extra_body": {"structured_outputs": {"json": {"type": "array"}}}},
            Constraint("json_schema", '{"type": "array"}'),
        ),
    ],
)
async def test_formats_become_constraints(options: dict[str, Any], constraint: Constraint | None):
    policy = FakeStreamingPolicy(lambda prompt, rng: "x")
    async with serving(policy) as served:
        await served.openai.chat.completions.create(model="fake", messages=CHAT, **options)
    assert policy.samplings[0].constraint == constraint


async def test_requests_without_a_seed_differ():
    policy = FakeStreamingPolicy(lambda prompt, rng: "x")
    async with serving(policy) as served:
        for _ in range(2):
            await served.openai.chat.completions.create(model="fake", messages=CHAT)
    assert policy.samplings[0].seed != policy.samplings[1].seed


async def test_a_policy_that_does_not_stream_is_served_too():
    policy = FakePolicy(lambda prompt, rng: f"you said {prompt}")
    async with serving(policy) as served:
        whole = await served.openai.chat.completions.create(
            model="fake", messages=CHAT, logprobs=True
        )
        chunks = await streamed(served)
    assert whole.choices[0].message.content == "you said grüß mich"
    assert whole.choices[0].logprobs.content[0].token == f"token_id:{ord('y')}"
    assert folded(chunks, 0)["content"] == "you said grüß mich"


async def test_parts_of_a_message_are_joined_and_developers_are_the_system():
    policy = FakePolicy(lambda prompt, rng: prompt)
    chat: Any = [
        {"role": "developer", "content": "be brief. "},
        {"role": "user", "name": "ada", "content": [{"type": "text", "text": t} for t in "ab"]},
    ]
    async with serving(policy) as served:
        reply = await served.openai.chat.completions.create(model="fake", messages=chat)
    assert reply.choices[0].message.content == "be brief. ab"


def test_deltas_join_to_what_they_were():
    parts = [
        Delta((1,), "", (-1.0,), reused_tokens=3),
        Delta((2, 3), "é", (-2.0, -3.0), reused_tokens=3),
    ]
    joined = Delta.joined(parts)
    assert joined == Delta((1, 2, 3), "é", (-1.0, -2.0, -3.0), reused_tokens=3)
    assert Delta.joined([]) == Delta()
