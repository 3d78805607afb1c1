"""The SGLang adapter against answers in SGLang's documented form: it cannot be installed here."""

import asyncio
import math
import threading
from pathlib import Path

import pytest

from policy.engine.adapters.fake_server import FakeServer, Json
from practicum.errors import PolicyDead
from practicum.policy.engine.adapters.exactness import Scale
from practicum.policy.engine.adapters.sglang_server import SglangServer
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint, Sampling
from practicum.types import StopReason


def generated(body: Json, *, finish: Json | None = None, original: bool = False) -> Json:
    """The answer to a request that samples token 7 until it has enough."""
    sampling = body["sampling_params"]
    count = sampling["max_new_tokens"]
    scale = 1.0 if original else sampling["temperature"]
    logits = {7: 2.0, 8: 1.0, 9: -1.0}
    total = math.log(sum(math.exp(x / scale) for x in logits.values()))
    top = [[x / scale - total, t, None] for t, x in logits.items()]
    meta: Json = {
        "id": body["rid"],
        "finish_reason": finish or {"type": "length", "length": count},
        "prompt_tokens": len(body["input_ids"]),
        "cached_tokens": 1,
        "completion_tokens": count,
        "weight_version": "5",
        "weight_versions": [
            {"version": "4", "start": 0, "end": 1},
            {"version": "5", "start": 1, "end": count},
        ],
        "output_token_logprobs": [top[0]] * count,
    }
    if body["top_logprobs_num"]:
        meta["output_top_logprobs"] = [top[: body["top_logprobs_num"]]] * count
    if body["return_sampling_mask"]:
        meta["output_token_sampling_mask"] = [[7, 8]] * count
        meta["output_token_sampling_logprobs"] = [top[0][0] - math.log(0.9)] * count
    return {"text": "...", "output_ids": [7] * count, "meta_info": meta}


@pytest.fixture
def sglang(server: FakeServer) -> FakeServer:
    model = {"id": "m", "object": "model", "owned_by": "sglang", "max_model_len": 64}
    server.routes |= {
        "/v1/models": lambda _: {"data": [model]},
        "/generate": generated,
        "/pause_generation": lambda _: {"status": "ok"},
        "/continue_generation": lambda _: {"status": "ok"},
        "/abort_request": lambda _: (200, ""),
        "/update_weight_version": lambda _: {"success": True},
        "/update_weights_from_disk": lambda _: {"success": True, "message": "Succeeded"},
        "/update_weights_from_distributed": lambda _: {"success": True, "message": "Succeeded"},
    }
    return server


async def test_tokens_log_probs_and_versions_come_out(sglang: FakeServer, tokens: Tokens):
    policy = await SglangServer.connect(sglang.url, tokens, version=4)
    assert policy.scale is Scale.TEMPERED
    done = await policy.generate([5, 6], Sampling(3, seed=9, top_logprobs=2))
    assert done.token_ids == (7, 7, 7)
    assert done.versions == (4, 5, 5)
    assert done.stop_reason is StopReason.MAX_TOKENS
    assert done.reused_tokens == 1
    assert [token for token, _ in done.top_logprobs[0]] == [7, 8]
    assert done.logprobs[0] == done.top_logprobs[0][0][1]
    sent = sglang.bodies("/generate")[-1]
    assert sent["input_ids"] == [5, 6]
    assert sent["extra_key"] == policy.weights.cache_key
    assert sent["sampling_params"]["sampling_seed"] == 9
    assert not sent["return_sampling_mask"]


async def test_the_kept_mass_of_a_cut_is_asked_for(sglang: FakeServer, tokens: Tokens):
    policy = await SglangServer.connect(sglang.url, tokens)
    cut = Sampling(3, temperature=0.8, top_p=0.9)
    assert policy.why_not_trainable(cut) is None
    done = await policy.generate([5], cut)
    assert done.log_kept_mass == pytest.approx((math.log(0.9),) * 3)


async def test_original_log_probs_are_noticed(sglang: FakeServer, tokens: Tokens):
    sglang.routes["/generate"] = lambda body: generated(body, original=True)
    policy = await SglangServer.connect(sglang.url, tokens)
    assert policy.scale is Scale.RAW


@pytest.mark.parametrize(
    ("matched", "reason"), [(2, StopReason.EOS), ("x", StopReason.STOP_STRING)]
)
async def test_what_it_stopped_at_is_the_stop_reason(
    sglang: FakeServer, tokens: Tokens, matched: int | str, reason: StopReason
):
    policy = await SglangServer.connect(sglang.url, tokens)
    finish = {"type": "stop", "matched": matched}
    sglang.routes["/generate"] = lambda body: generated(body, finish=finish)
    done = await policy.generate([5], Sampling(3, stop=("x",)))
    assert done.stop_reason is reason


async def test_choices_become_a_regular_expression(sglang: FakeServer, tokens: Tokens):
    policy = await SglangServer.connect(sglang.url, tokens)
    await policy.generate([5], Sampling(3, constraint=Constraint("choice", '["a.b", "c"]')))
    assert sglang.bodies("/generate")[-1]["sampling_params"]["regex"] == r"(a\.b)|(c)"


async def test_new_weights_come_between_pause_and_continue(
    sglang: FakeServer, tokens: Tokens, tmp_path: Path
):
    policy = await SglangServer.connect(sglang.url, tokens)
    sglang.calls.clear()
    await policy.update_weights(tmp_path, 1)
    assert sglang.paths() == [
        "/pause_generation",
        "/update_weights_from_disk",
        "/update_weight_version",
        "/continue_generation",
    ]
    assert sglang.bodies("/pause_generation") == [{"mode": "in_place"}]
    [body] = sglang.bodies("/update_weights_from_disk")
    assert body == {"model_path": str(tmp_path), "flush_cache": False}
    label = {"new_version": "1", "abort_all_requests": False}
    assert sglang.bodies("/update_weight_version") == [label]


async def test_weights_can_be_broadcast_instead(sglang: FakeServer, tokens: Tokens):
    policy = await SglangServer.connect(sglang.url, tokens)
    async with policy.updating(1):
        assert isinstance(policy.wire, SglangServer)
        await policy.wire.receive_weights({"a": (2, 3), "b": (4,)}, "bfloat16", "trainer")
    [body] = sglang.bodies("/update_weights_from_distributed")
    assert body["names"] == ["a", "b"]
    assert body["shapes"] == [[2, 3], [4]]
    assert body["dtypes"] == ["bfloat16", "bfloat16"]
    assert policy.version == 1


async def test_weights_that_were_not_taken_end_the_policy(
    sglang: FakeServer, tokens: Tokens, tmp_path: Path
):
    sglang.routes["/update_weights_from_disk"] = lambda _: {"success": False, "message": "no shard"}
    policy = await SglangServer.connect(sglang.url, tokens)
    with pytest.raises(PolicyDead, match="no shard"):
        await policy.update_weights(tmp_path, 1)
    with pytest.raises(PolicyDead):
        await policy.generate([5], Sampling(3))


async def test_a_cancelled_call_is_aborted_on_the_server(sglang: FakeServer, tokens: Tokens):
    policy = await SglangServer.connect(sglang.url, tokens)
    arrived, may_answer = threading.Event(), threading.Event()

    def slow(body: Json) -> Json:
        arrived.set()
        may_answer.wait(10)
        return generated(body)

    sglang.routes["/generate"] = slow
    call = asyncio.create_task(policy.generate([5], Sampling(3)))
    await asyncio.to_thread(arrived.wait, 10)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    may_answer.set()
    request_id = sglang.bodies("/generate")[-1]["rid"]
    assert sglang.bodies("/abort_request") == [{"rid": request_id}]
