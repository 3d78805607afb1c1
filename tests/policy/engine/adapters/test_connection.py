import asyncio
import socket

import pytest

from policy.engine.adapters.fake_server import FakeServer
from practicum.errors import InfraError, PolicyDead, UsageError
from practicum.policy.engine.adapters.connection import Connection


def connection(server: FakeServer, **options: float) -> Connection:
    return Connection(server.url, first_pause_s=0.001, **options)  # pyright: ignore[reportArgumentType]


async def test_what_passes_is_tried_again_until_it_has_passed(server: FakeServer):
    answers = iter([(503, "busy"), (429, {"error": {"message": "slow down"}}), (200, {"ok": 1})])
    server.routes["/x"] = lambda body: next(answers)
    assert await connection(server).post("/x", {"a": 2}) == {"ok": 1}
    assert server.bodies("/x") == [{"a": 2}] * 3


async def test_a_server_that_keeps_failing_is_an_infrastructure_failure(server: FakeServer):
    server.routes["/x"] = lambda body: (500, {"error": {"message": "CUDA is unwell"}})
    with pytest.raises(InfraError, match="500: CUDA is unwell") as caught:
        await connection(server, attempts=3).post("/x", {})
    assert not isinstance(caught.value, PolicyDead)
    assert len(server.calls) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "too long", "code": 400}},
        {"object": "error", "message": "too long"},
        {"detail": "too long"},
        {"error": "too long"},
    ],
)
async def test_a_refusal_is_the_users_to_mend_and_not_repeated(server: FakeServer, body: dict):
    server.routes["/x"] = lambda _: (400, body)
    with pytest.raises(UsageError, match="answered 400: too long"):
        await connection(server).post("/x", {})
    assert len(server.calls) == 1


async def test_a_refused_key_is_named(server: FakeServer):
    server.routes["/x"] = lambda _: (401, {"error": "Unauthorized"})
    with pytest.raises(UsageError, match="API key"):
        await connection(server).post("/x", {})


async def test_nobody_at_the_address_means_a_dead_policy():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PolicyDead, match="cannot be reached"):
            await Connection(url, attempts=2, first_pause_s=0.001).post("/x", {})


async def test_no_answer_in_time_is_an_infrastructure_failure():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the system takes the connection, nobody answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(InfraError, match="did not answer within"):
            await Connection(url, timeout_s=0.05).post("/x", {})


async def test_an_answer_that_is_not_json_is_an_infrastructure_failure(server: FakeServer):
    server.routes["/x"] = lambda _: (200, "<html>proxy</html>")
    with pytest.raises(InfraError, match="not JSON"):
        await connection(server).get("/x")


def test_one_connection_serves_one_event_loop_after_another(server: FakeServer):
    server.routes["/x"] = lambda _: {"ok": 1}
    used = connection(server)
    assert asyncio.run(used.get("/x")) == asyncio.run(used.get("/x")) == {"ok": 1}


def test_an_address_is_told_from_a_path():
    with pytest.raises(UsageError, match="no address"):
        Connection("localhost:8000")
    assert Connection("http://localhost:8000/v1/").url == "http://localhost:8000"
