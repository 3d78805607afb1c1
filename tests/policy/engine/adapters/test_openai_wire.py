import math
from typing import Any

import pytest

from policy.engine.adapters.fake_server import FakeServer, Json
from practicum.errors import InfraError, UsageError
from practicum.policy.engine.adapters.openai_server import OpenAiPolicy
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint, Sampling
from practicum.types import Message, StopReason

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def serve_models(server: FakeServer, **changes: Any) -> None:
    model = {"id": "m", "object": "model", "owned_by": "someone", **changes}
    server.routes["/v1/models"] = lambda _: {"data": [model]}


def completed(body: Json) -> Json:
    """An answer of `/v1/completions` with `return_token_ids`, as vLLM gives it."""
    count, scale = body["max_tokens"], body.get("temperature", 1.0)
    logits = {"a": 2.0, "b": 1.0, "c": -1.0}
    total = math.log(sum(math.exp(x / scale) for x in logits.values()))
    values = {text: x / scale - total for text, x in logits.items()}
    logprobs = {"token_logprobs": [values["a"]] * count, "top_logprobs": [values] * count}
    choice = {
        "text": "a" * count,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [7] * count,
        "prompt_token_ids": body["prompt"],
        "logprobs": logprobs,
    }
    return {"choices": [choice], "usage": {"prompt_tokens_details": None}}


def say(text: str | None, finish: str = "stop") -> Json:
    message = {"role": "assistant", "content": text}
    return {"choices": [{"message": message, "finish_reason": finish}]}


async def test_a_chat_is_evaluated_without_a_tokenizer(server: FakeServer):
    serve_models(server)
    server.routes[CHAT] = lambda _: say("Grüße")
    policy = await OpenAiPolicy.connect(server.url, context_length=100)
    chat = [Message("system", "Be <|terse|>."), Message("user", "Hello “you”")]
    done = await policy.generate(policy.render(chat), Sampling(5, temperature=0.3, seed=7))
    assert done.text == "Grüße"
    assert done.stop_reason is StopReason.EOS
    assert all(map(math.isnan, done.logprobs))
    [body] = server.bodies(CHAT)
    assert body["messages"] == [{"role": m.role, "content": m.content} for m in chat]
    assert (body["max_tokens"], body["temperature"], body["seed"]) == (5, 0.3, 7)
    assert "top_k" not in body
    assert policy.opaque is not None
    assert "tokenizer" in str(policy.why_not_trainable(Sampling(5)))


async def test_a_text_is_completed_as_it_stands(server: FakeServer):
    serve_models(server, max_model_len=64)
    server.routes[COMPLETIONS] = lambda _: {"choices": [{"text": "7", "finish_reason": "stop"}]}
    policy = await OpenAiPolicy.connect(server.url)
    done = await policy.generate(
        policy.render([Message("text", "3+4=")]), Sampling(5, stop=("\n",))
    )
    assert (done.text, done.stop_reason) == ("7", StopReason.STOP_STRING)
    assert server.bodies(COMPLETIONS)[0]["prompt"] == "3+4="


async def test_a_server_that_tells_tokens_and_log_probs_can_be_trained_on(
    server: FakeServer, tokens: Tokens
):
    serve_models(server, owned_by="vllm", max_model_len=64)
    server.routes[COMPLETIONS] = completed
    policy = await OpenAiPolicy.connect(server.url, tokens=tokens)
    assert policy.opaque is None
    assert policy.why_not_trainable(Sampling(3, temperature=0.5)) is None
    done = await policy.generate([5, 6], Sampling(3))
    assert done.token_ids == (7, 7, 7)
    sent = server.bodies(COMPLETIONS)[-1]
    assert sent["prompt"] == [5, 6]
    assert sent["return_token_ids"] is True
    assert sent["top_k"] == -1  # or the server takes that of the model's generation_config.json


@pytest.mark.parametrize(
    ("missing", "reason"), [("token_ids", "token ids"), ("logprobs", "log-probs")]
)
async def test_a_server_that_tells_too_little_is_for_evaluation_alone(
    server: FakeServer, tokens: Tokens, missing: str, reason: str
):
    def without(body: Json) -> Json:
        answer = completed(body)
        del answer["choices"][0][missing]
        return answer

    serve_models(server, max_model_len=64)
    server.routes[COMPLETIONS] = without
    policy = await OpenAiPolicy.connect(server.url, tokens=tokens)
    assert policy.opaque is not None
    assert reason in str(policy.why_not_trainable(Sampling(3)))
    done = await policy.generate([5], Sampling(3))
    assert done.text == "aaa"
    assert list(done.token_ids) == tokens.encode("aaa")


async def test_fields_that_the_interface_lacks_are_refused_not_dropped(server: FakeServer):
    serve_models(server, max_model_len=64)
    policy = await OpenAiPolicy.connect(server.url)
    prompt = policy.render([Message("user", "hi")])
    with pytest.raises(UsageError, match="top_k, ignore_eos"):
        await policy.generate(prompt, Sampling(3, top_k=5, ignore_eos=True))
    with pytest.raises(UsageError, match="constraint"):
        await policy.generate(prompt, Sampling(3, constraint=Constraint("regex", "a+")))


async def test_a_schema_is_the_response_format(server: FakeServer):
    serve_models(server, max_model_len=64)
    server.routes[CHAT] = lambda _: say("{}")
    policy = await OpenAiPolicy.connect(server.url)
    schema = Constraint("json_schema", '{"type": "object"}')
    await policy.generate(policy.render([Message("user", "hi")]), Sampling(3, constraint=schema))
    form = server.bodies(CHAT)[0]["response_format"]
    assert form["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize("answer", [say("", "content_filter"), {"choices": []}])
async def test_an_answer_that_was_withheld_is_no_completion(server: FakeServer, answer: Json):
    serve_models(server, max_model_len=64)
    server.routes[CHAT] = lambda _: answer
    policy = await OpenAiPolicy.connect(server.url)
    with pytest.raises(InfraError):
        await policy.generate(policy.render([Message("user", "hi")]), Sampling(3))


async def test_a_model_that_is_not_served_is_named_with_what_is(server: FakeServer):
    serve_models(server, max_model_len=64, id="llama-3")
    with pytest.raises(UsageError, match="Did you mean 'llama-3'"):
        await OpenAiPolicy.connect(server.url, model="lama-3")
    serve_models(server)
    with pytest.raises(UsageError, match="context length"):
        await OpenAiPolicy.connect(server.url)


@pytest.mark.parametrize(("told", "own"), [(64, 100), (100, 64), (64, None), (None, 64)])
async def test_the_shorter_of_the_servers_context_and_ones_own_holds(
    server: FakeServer, told: int | None, own: int | None
):
    serve_models(server, max_model_len=told)
    assert (await OpenAiPolicy.connect(server.url, context_length=own)).context_length == 64


async def test_only_its_own_prompts_are_read_back(server: FakeServer):
    serve_models(server, max_model_len=64)
    policy = await OpenAiPolicy.connect(server.url)
    with pytest.raises(UsageError, match="rendered itself"):
        await policy.generate([5, 6], Sampling(3))
    with pytest.raises(UsageError, match="either one `text`"):
        policy.render([Message("text", "a"), Message("user", "b")])
