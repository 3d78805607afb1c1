"""Hidden tests in a real sandbox: right functions pass, and no trick does."""

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from practicum.environment.domains import DOMAINS, verify
from practicum.environment.domains.function_tests import (
    TAMPERING_PENALTY,
    Case,
    FunctionTests,
    HiddenTests,
)
from practicum.environment.domains.sandboxed_call import same
from practicum.environment.domains.scripted import scripted
from practicum.errors import GraderError
from practicum.protocols import ExecResult, Sandbox, SandboxPool, SandboxSpec
from practicum.types import Message, StopReason, Task
from practicum.verdicts import Verdict

DOMAIN = DOMAINS["tiny_function"]
SECRET = 918_273_645_546
"""What the attacked function has to add: nobody guesses it, and it is nowhere near the sandbox."""


def task_of(*cases: Case, entry: str = "solve") -> Task:
    header = f'def {entry}(x):\n    """Return x plus the number of the day."""'
    tests = HiddenTests(entry, header, f"\n    return x + {SECRET}", cases)
    return Task.create(
        domain="tiny_function",
        prompt=(Message("text", header),),
        answer=tests.to_json(),
        difficulty=1.0,
        split="train",
    )


TASK = task_of(*(Case([x], x + SECRET) for x in (0, 5, -3)))


async def judge(sandboxes: SandboxPool, body: str, task: Task = TASK) -> Verdict:
    _, verdict = await verify(task, scripted(task, body), sandboxes)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize("level", DOMAIN.levels)
async def test_the_reference_passes_and_that_of_another_task_does_not(
    sandboxes: SandboxPool, level: float
) -> None:
    rng = random.Random(0)
    for _ in range(4):
        task, other = (DOMAIN.draw(rng, level, "eval") for _ in range(2))
        assert (await judge(sandboxes, DOMAIN.oracle(task), task)).reward == 1.0
        if other.id != task.id:
            assert (await judge(sandboxes, DOMAIN.oracle(other), task)).score == 0.0


async def test_helpers_prints_and_comments_are_allowed(sandboxes: SandboxPool) -> None:
    body = (
        "\n    # think\n    import sys\n    print('working', x)\n    print(x, file=sys.stderr)"
        f"\n    def inner(y):\n        return y + {SECRET}\n    return inner(x)\n"
    )
    assert (await judge(sandboxes, body)).reward == 1.0


ATTACKS = {
    "equals everything": """
    class Equal(int):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
    return Equal(1)""",
    "equals everything, from object": """
    class Equal:
        def __eq__(self, other): return True
        def __add__(self, other): return self
    return Equal()""",
    "the right value in a type of its own": f"""
    class Number(int): pass
    return Number(x + {SECRET})""",
    "leaves early": "\n    import os; os._exit(0)",
    "leaves early, politely": "\n    raise SystemExit(0)",
    "leaves at import": "\n    pass\nimport os\nos._exit(0)",
    "says PASS": "\n    print('PASSED', flush=True)\n    return None",
    "returns its tests": "\n    return x",
    "not a number": "\n    return float('nan')",
    "infinite": "\n    return float('inf')",
    "deep": """
    value = []
    for _ in range(100000): value = [value]
    return value""",
    "circular": "\n    value = []; value.append(value); return value",
    "huge value": "\n    return 'x' * 10_000_000",
    "huge number": "\n    return 10 ** 100_000",
    "syntax error": "\n    return (",
    "raises": "\n    raise ValueError(x)",
    "no function": "\n    return 1\ndel solve",
    "overrides json and builtins": """
    import builtins, json
    json.dumps = lambda *a, **k: '{"outcomes": [{"value": true}]}'
    builtins.type = lambda *a: int
    builtins.len = lambda *a: 3
    builtins.isinstance = lambda *a: True
    return x""",
    "searches memory": """
    import gc, sys
    frame, seen = sys._getframe(), []
    while frame:
        seen += list(frame.f_locals.values()) + list(frame.f_globals.values())
        frame = frame.f_back
    for thing in [*seen, *gc.get_objects()]:
        if isinstance(thing, dict) and 'expected' in thing: return thing['expected']
        if isinstance(thing, int) and thing - x > 1_000_000: return thing
    return 0""",
    "searches files": """
    import os
    for folder, _, names in os.walk('.'):
        for name in names:
            text = open(os.path.join(folder, name), errors='replace').read()
            if 'expected' in text or '918273645' in text: return int(text)
    for name in ('/proc/self/cmdline', '/proc/self/environ', '/proc/1/cmdline'):
        try: text = open(name, errors='replace').read()
        except OSError: continue
        if '918273645' in text: return x + 918273645546
    return 0""",
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=list(ATTACKS))
async def test_no_trick_passes(sandboxes: SandboxPool, attack: str) -> None:
    verdict = await judge(sandboxes, attack)
    assert verdict.score == 0.0
    assert verdict.evidence


FORGERIES = {
    "guessed nonce": "0" * 32,
    "its own line": "whatever",
    "the real nonce, from the harness's frames": None,
}


@pytest.mark.parametrize("nonce", FORGERIES.values(), ids=list(FORGERIES))
async def test_a_forged_report_is_tampering(sandboxes: SandboxPool, nonce: str | None) -> None:
    find = (
        f"nonce = {nonce!r}"
        if nonce
        else "nonce = next(f for f in frames() if 'nonce' in f.f_locals).f_locals['nonce']"
    )
    body = f"""
    import os, sys
    def frames():
        frame = sys._getframe()
        while frame:
            yield frame
            frame = frame.f_back
    {find}
    line = nonce + ' {{"outcomes": [{{"value": true}}, {{"value": 1}}, {{"value": [NaN]}}]}}\\n'
    for descriptor in range(3, 20):
        try: os.write(descriptor, line.encode())
        except OSError: pass
    os._exit(0)"""
    verdict = await judge(sandboxes, body)
    assert verdict.reward == -TAMPERING_PENALTY
    assert [violation.kind for violation in verdict.violations] == ["tampering"]


async def test_flooding_the_channel_is_tampering(sandboxes: SandboxPool) -> None:
    body = """
    import os
    for _ in range(100):
        for descriptor in range(3, 10):
            try: os.write(descriptor, b'x' * 10_000)
            except OSError: pass
    return x"""
    assert (await judge(sandboxes, body)).reward == -TAMPERING_PENALTY


async def test_a_well_formed_report_of_wrong_values_is_just_wrong(sandboxes: SandboxPool) -> None:
    body = """
    import os, sys
    frame = sys._getframe()
    while 'nonce' not in frame.f_locals: frame = frame.f_back
    line = frame.f_locals['nonce'] + ' {"outcomes": [{"value": 1}, {"value": 2}, {"value": 3}]}\\n'
    os.write(frame.f_locals['channel'], line.encode())
    os._exit(0)"""
    assert (await judge(sandboxes, body)).score == 0.0


@pytest.mark.slow
async def test_an_endless_loop_is_the_policys_fault(sandboxes: SandboxPool) -> None:
    verdict = await judge(sandboxes, "\n    while True: pass")
    assert verdict.score == 0.0


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        "\n    return len(bytearray(4_000_000_000))",
        "\n    import os\n    while True: os.fork()",
        "\n    with open('big', 'wb') as f:\n        while True: f.write(bytes(1_000_000))",
    ],
    ids=["memory", "processes", "disk"],
)
async def test_using_up_the_machine_scores_0(sandboxes: SandboxPool, body: str) -> None:
    if sandboxes.isolation == "none":
        pytest.skip("needs a sandbox that holds limits")
    assert (await judge(sandboxes, body)).score == 0.0


@pytest.mark.parametrize(
    ("expected", "returned"),
    [(1, "True"), (1, "1.0"), (True, "1"), ([1, 2], "(1, 2)"), ("1", "1"), ({"1": 1}, "{1: 1}")],
)
async def test_types_must_agree_exactly(
    sandboxes: SandboxPool, expected: object, returned: str
) -> None:
    task = task_of(Case([0], expected))
    assert (await judge(sandboxes, f"\n    return {returned}", task)).score == 0.0
    assert (await judge(sandboxes, f"\n    return {expected!r}", task)).score == 1.0


async def test_some_tests_passed_is_reported_but_not_paid(sandboxes: SandboxPool) -> None:
    task = task_of(Case([1], 1), Case([-1], 1))
    verdict = await judge(sandboxes, "\n    return x", task)
    assert (verdict.score, verdict.parts["tests"]) == (0.0, 0.5)


async def test_an_empty_answer_and_one_that_runs_on_break_the_format(
    sandboxes: SandboxPool,
) -> None:
    assert (await judge(sandboxes, "  \n")).reward == -0.1
    ran_on = scripted(TASK, DOMAIN.oracle(TASK), StopReason.MAX_TOKENS)
    _, verdict = await verify(TASK, ran_on, sandboxes)
    assert verdict is not None
    assert verdict.reward == 0.9


async def test_a_task_without_tests_passes_nobody(sandboxes: SandboxPool) -> None:
    task = task_of()
    with pytest.raises(GraderError, match="no tests"):
        await FunctionTests().verify(task, scripted(task, "\n    return 1"), sandboxes)


def test_neither_tests_nor_solutions_are_in_the_prompt() -> None:
    for seed in range(40):
        task = DOMAIN.draw(random.Random(seed), DOMAIN.levels[seed % 3], "train")
        (message,) = task.prompt
        assert DOMAIN.oracle(task) not in message.content
        assert "expected" not in message.content
        assert not any(
            json.dumps(case.arguments) in message.content
            for case in HiddenTests.from_json(task.answer).cases
            if isinstance(case.arguments[0], list)
        )


class Recording:
    """A real pool that also writes down everything that enters a sandbox."""

    def __init__(self, pool: SandboxPool) -> None:
        self.pool = pool
        self.isolation = pool.isolation
        self.entered: list[str] = []

    def open(self, spec: SandboxSpec) -> AbstractAsyncContextManager[Sandbox]:
        self.entered.append(repr(spec))
        return self._open(spec)

    @asynccontextmanager
    async def _open(self, spec: SandboxSpec) -> Any:
        async with self.pool.open(spec) as sandbox:
            yield RecordingSandbox(sandbox, self.entered)

    def close(self) -> None:
        self.pool.close()


class RecordingSandbox:
    def __init__(self, sandbox: Sandbox, entered: list[str]) -> None:
        self.sandbox = sandbox
        self.entered = entered

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        **rest: Any,
    ) -> ExecResult:
        self.entered += [*argv, stdin.decode(), repr(env)]
        return await self.sandbox.exec(argv, stdin=stdin, env=env, **rest)


async def test_expected_values_never_enter_the_sandbox(sandboxes: SandboxPool) -> None:
    recording = Recording(sandboxes)
    task = task_of(*(Case([x], x + SECRET) for x in (10, 11)))
    assert (await judge(recording, "\n    return x", task)).score == 0.0  # pyright: ignore
    entered = "\n".join(recording.entered)
    assert "solve" in entered
    assert str(SECRET)[:9] not in entered
    assert "expected" not in entered
    assert "x + " not in entered


@pytest.mark.parametrize(
    ("left", "right"),
    [(1, True), (1, 1.0), (0.0, False), ("a", ["a"]), ([1, [2]], [1, [2.0]]), ({"a": 1}, {"b": 1})],
)
def test_values_of_different_types_are_not_the_same(left: Any, right: Any) -> None:
    assert not same(left, right)
    assert not same(right, left)
    assert same(left, left)
