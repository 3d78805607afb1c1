"""The vLLM adapter against answers as vLLM 0.32 gives them. The real one: `test_vllm_peer.py`."""

import math
from pathlib import Path

import pytest

from policy.engine.adapters.fake_server import FakeServer, Json
from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.policy.engine.adapters.exactness import Scale
from practicum.policy.engine.adapters.vllm_process import check_options
from practicum.policy.engine.adapters.vllm_server import VllmServer
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint, Sampling
from practicum.types import StopReason

GENERATE = "/inference/v1/generate"


def likeliest(temperature: float, mode: str) -> list[Json]:
    scale = temperature if mode == "processed_logprobs" else 1.0
    logits = {7: 2.0, 8: 1.0, 9: -1.0}
    total = math.log(sum(math.exp(x / scale) for x in logits.values()))
    return [{"token_id": t, "logprob": x / scale - total, "rank": 1} for t, x in logits.items()]


def generated(body: Json, mode: str = "processed_logprobs", **changes: object) -> Json:
    """The answer to a request that samples token 7 until it has enough."""
    sampling = body["sampling_params"]
    count = sampling["max_tokens"]
    top = likeliest(sampling["temperature"], mode)
    entry = {**top[0], "top_logprobs": top[: max(1, sampling["logprobs"])]}
    choice: Json = {
        "index": 0,
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": [7] * count,
        "sampling_mask": None,
        "weight_versions": [{"version": "default", "start": 0, "end": count}],
        "logprobs": {"content": [entry] * count},
    }
    usage = {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 1}}
    return {"request_id": "r", "usage": usage, "choices": [{**choice, **changes}]}


def serve(server: FakeServer, *, mode: str = "processed_logprobs", device: str = "cpu") -> None:
    model = {"id": "m", "object": "model", "owned_by": "vllm", "max_model_len": 64}
    info = {
        "device_config": {"device": device},
        "model_config": {"word_embeddings_untied_by_checkpoint": False},
    }
    server.routes |= {
        "/v1/models": lambda _: {"data": [model]},
        GENERATE: lambda body: generated(body, mode),
        "/pause": lambda _: {"status": "paused"},
        "/resume": lambda _: {"status": "resumed"},
        "/abort_requests": lambda _: {"status": "aborted"},
        "/update_weight_version": lambda body: {"success": True, **body},
        "/server_info": lambda _: {"vllm_config": info},
        "/collective_rpc": lambda _: {"results": [None]},
    }


async def test_tokens_go_in_and_tokens_come_out(server: FakeServer, tokens: Tokens):
    serve(server)
    policy = await VllmServer.connect(server.url, tokens, version=4)
    sampling = Sampling(3, temperature=2.0, seed=2**70 + 5, top_logprobs=2, stop=("x",))
    done = await policy.generate([5, 6], sampling)
    assert done.token_ids == (7, 7, 7)
    assert done.versions == (4, 4, 4)
    assert done.stop_reason is StopReason.MAX_TOKENS
    assert done.reused_tokens == 1
    expected = [(e["token_id"], e["logprob"]) for e in likeliest(2.0, "processed_logprobs")]
    assert done.logprobs == (expected[0][1],) * 3
    assert done.top_logprobs == (tuple(expected[:2]),) * 3
    sent = server.bodies(GENERATE)[-1]
    assert sent["token_ids"] == [5, 6]
    assert sent["cache_salt"] == policy.weights.cache_key
    words = sent["sampling_params"]
    assert words["seed"] == 5
    assert words["top_k"] == -1
    assert set(words["stop_token_ids"]) == tokens.eos_ids


@pytest.mark.parametrize(
    ("mode", "scale"), [("processed_logprobs", Scale.DRAWN), ("raw_logprobs", Scale.RAW)]
)
async def test_what_the_log_probs_mean_is_found_out(
    server: FakeServer, tokens: Tokens, mode: str, scale: Scale
):
    serve(server, mode=mode)
    policy = await VllmServer.connect(server.url, tokens)
    assert policy.scale is scale
    cool = Sampling(3, temperature=0.5)
    assert (policy.why_not_trainable(cool) is None) is (scale is Scale.DRAWN)
    assert policy.why_not_trainable(Sampling(3)) is None


async def test_a_constraint_goes_to_the_server(server: FakeServer, tokens: Tokens):
    serve(server)
    policy = await VllmServer.connect(server.url, tokens)
    choice = Constraint("choice", '["yes", "no"]')
    await policy.generate([5], Sampling(3, constraint=choice))
    sent = server.bodies(GENERATE)[-1]["sampling_params"]
    assert sent["structured_outputs"] == {"choice": ["yes", "no"]}


async def test_bad_requests_are_refused_before_they_are_sent(server: FakeServer, tokens: Tokens):
    serve(server)
    policy = await VllmServer.connect(server.url, tokens)
    num_calls = len(server.calls)
    bad: list[tuple[list[int], Sampling, str]] = [
        ([], Sampling(3), "empty"),
        ([5] * 62, Sampling(3), "65, but m holds 64"),
        ([5, tokens.largest_id + 1], Sampling(3), "outside the vocabulary"),
        ([5], Sampling(3, stop=("",)), "stop string"),
    ]
    for prompt, sampling, message in bad:
        with pytest.raises(UsageError, match=message):
            await policy.generate(prompt, sampling)
    assert len(server.calls) == num_calls


async def test_an_aborted_request_is_no_completion(server: FakeServer, tokens: Tokens):
    serve(server)
    policy = await VllmServer.connect(server.url, tokens)
    server.routes[GENERATE] = lambda body: generated(body, finish_reason="abort")
    with pytest.raises(InfraError, match="abort"):
        await policy.generate([5], Sampling(3))


async def test_new_weights_come_between_pause_and_resume(
    server: FakeServer, tokens: Tokens, tiny_folder: Path
):
    serve(server, device="cuda")
    policy = await VllmServer.connect(server.url, tokens)
    old_key = policy.weights.cache_key
    server.calls.clear()
    await policy.update_weights(tiny_folder, 1)
    changes = [path for path in server.paths() if not path.startswith("/server_info")]
    assert changes == ["/pause?mode=keep", "/collective_rpc", "/update_weight_version", "/resume"]
    [call] = server.bodies("/collective_rpc")
    assert call == {"method": "reload_weights", "kwargs": {"weights_path": str(tiny_folder)}}
    assert server.bodies("/update_weight_version") == [{"new_version": "1"}]
    assert policy.version == 1
    await policy.generate([5], Sampling(3))
    assert server.bodies(GENERATE)[-1]["cache_salt"] == policy.weights.cache_key != old_key


async def test_a_server_that_would_keep_its_old_head_is_not_updated(
    server: FakeServer, tokens: Tokens, tiny_folder: Path
):
    serve(server, device="cpu")
    policy = await VllmServer.connect(server.url, tokens)
    with pytest.raises(UsageError, match="old head"):
        await policy.update_weights(tiny_folder, 1)
    assert "/collective_rpc" not in server.paths()
    assert (await policy.generate([5], Sampling(2))).versions == (0, 0)


async def test_a_failed_reload_ends_the_policy(
    server: FakeServer, tokens: Tokens, tiny_folder: Path
):
    serve(server, device="cuda")
    policy = await VllmServer.connect(server.url, tokens)
    server.routes["/collective_rpc"] = lambda _: (400, {"error": {"message": "no such file"}})
    with pytest.raises(PolicyDead, match="no such file"):
        await policy.update_weights(tiny_folder, 1)
    assert server.paths()[-1] == "/abort_requests"
    with pytest.raises(PolicyDead):
        await policy.generate([5], Sampling(3))


async def test_what_the_server_lacks_is_said_with_the_flag_that_adds_it(
    server: FakeServer, tokens: Tokens, tiny_folder: Path
):
    serve(server, device="cuda")
    del server.routes["/pause"], server.routes["/update_weight_version"]
    policy = await VllmServer.connect(server.url, tokens)
    with pytest.raises(UsageError, match="VLLM_SERVER_DEV_MODE=1"):
        await policy.update_weights(tiny_folder, 1)
    server.routes[GENERATE] = lambda _: (403, {"error": {"message": "disabled"}})
    with pytest.raises(UsageError, match="--enable-scale-out"):
        await VllmServer.connect(server.url, tokens)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_model_length", "Did you mean 'max_model_len'"),
        ("zzz", "`vllm.AsyncEngineArgs` has the list"),
        ("logprobs_mode", "is set for you"),
    ],
)
def test_an_option_that_vllm_does_not_have_or_that_is_ours_is_refused(name: str, message: str):
    known = {"max_model_len", "logprobs_mode", "enforce_eager"}
    check_options({"max_model_len": 64}, known)
    with pytest.raises(UsageError, match=message):
        check_options({name: 1}, known)
