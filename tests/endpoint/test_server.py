"""Who can reach the server, and what it says of itself."""

import contextlib
import socket

import httpx
import openai
import pytest

from endpoint.served import serving
from practicum.endpoint import bind, make_app
from practicum.errors import UsageError
from practicum.testing.streaming import FakeStreamingPolicy


def fake() -> FakeStreamingPolicy:
    return FakeStreamingPolicy(lambda prompt, rng: "x")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_without_a_key_only_this_machine_is_served(host: str):
    with pytest.raises(UsageError, match="PRACTICUM_API_KEY"):
        bind(host, 0, has_key=False)
    with contextlib.suppress(UsageError), bind(host, 0, has_key=True) as listening:
        assert listening.getsockname()[1] > 0  # where the machine has such addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_this_machine_needs_no_key(host: str):
    with bind(host, 0, has_key=False) as listening:
        assert listening.getsockname()[0] in ("127.0.0.1", "::1")


def test_a_port_that_is_taken_or_a_host_that_is_none_is_the_users_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="choose another port"):
            bind("127.0.0.1", taken.getsockname()[1], has_key=False)
    with pytest.raises(UsageError, match=r"cannot bind to '127\.0\.0\.1\.9'"):
        bind("127.0.0.1.9", 0, has_key=False)


async def test_with_a_key_nothing_but_health_is_told_without_it():
    async with serving(fake(), api_key="secret") as served:
        for path in ("/v1/models", "/metrics", "/v1/chat/completions"):
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
                reply = await served.http.get(path, headers=headers)
                assert (reply.status_code, reply.json()["error"]["code"]) == (
                    401,
                    "invalid_api_key",
                )
        assert (await served.http.get("/health")).json() == {"status": "ok"}
        assert [model.id async for model in served.openai.models.list()] == ["fake"]
        wrong = openai.AsyncOpenAI(base_url=f"{served.address}/v1", api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            await wrong.models.list()
        await wrong.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example:8000"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "LOCALHOST:1234"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
    ],
)
async def test_a_web_page_cannot_ask_for_its_visitor(headers: dict[str, str], status: int):
    app = make_app(fake(), model_id="fake")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://localhost"
    ) as http:
        reply = await http.post(
            "/v1/completions",
            content=b'{"model": "fake", "prompt": "x"}',
            headers={"content-type": "application/json", **headers},
        )
    assert reply.status_code == status
    assert "access-control-allow-origin" not in reply.headers


async def test_metrics_count_requests_tokens_and_times():
    async with serving(fake()) as served:
        for _ in range(3):
            await served.openai.completions.create(model="fake", prompt="four")
        with pytest.raises(openai.BadRequestError):
            await served.openai.completions.create(model="fake", prompt="")
        reply = await served.http.get("/metrics")
        metrics = {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in reply.text.splitlines())
            if not name.startswith("#")
        }
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    path = 'path="/v1/completions"'
    assert metrics[f'practicum_requests_total{{{path},status="200"}}'] == 3
    assert metrics[f'practicum_requests_total{{{path},status="400"}}'] == 1
    assert metrics["practicum_prompt_tokens_total"] == 12
    assert metrics["practicum_sampled_tokens_total"] == 6
    assert metrics["practicum_first_token_seconds_count"] == 3
    assert metrics["practicum_next_token_seconds_count"] == 3
    assert metrics["practicum_request_seconds_count"] == 4
    assert metrics["practicum_waiting"] == metrics["practicum_running"] == 0
