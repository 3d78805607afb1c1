"""Who is to blame when a call of the policy's function brings nothing back."""

import json
from collections.abc import Sequence

import pytest

from practicum.environment.domains import DOMAINS
from practicum.environment.domains.reward import MAX_CONCURRENT
from practicum.environment.domains.sandboxed_call import (
    CPU_LIMIT_S,
    SPEC,
    WALL_LIMIT_S,
    Calls,
    call_function,
)
from practicum.errors import GraderError, InfraError
from practicum.protocols import ExecOutcome, ExecResult
from practicum.testing import FakeSandboxPool
from practicum.testing.sandbox import exec_result


async def called(outcome: ExecOutcome, *, ready: bool) -> Calls:
    def command(argv: Sequence[str], stdin: bytes) -> ExecResult:
        line = json.loads(stdin)["nonce"].encode() + b" ready\n"
        return exec_result(line if ready else b"", rc=1, outcome=outcome)

    return await call_function(FakeSandboxPool(command), "def f(): pass", "f", [[]])


@pytest.mark.parametrize(
    "outcome",
    [
        ExecOutcome.OOM,
        ExecOutcome.PIDS,
        ExecOutcome.DISK,
        ExecOutcome.TIMEOUT,
        ExecOutcome.SANDBOX_DEAD,
        ExecOutcome.INFRA_ERROR,
    ],
)
async def test_what_runs_out_before_the_solution_runs_is_the_machinerys(
    outcome: ExecOutcome,
) -> None:
    with pytest.raises(InfraError):
        await called(outcome, ready=False)


async def test_a_harness_that_cannot_run_is_the_graders() -> None:
    with pytest.raises(GraderError, match="Is there a python3"):
        await called(ExecOutcome.NONZERO, ready=False)


@pytest.mark.parametrize(
    "outcome", [ExecOutcome.OOM, ExecOutcome.PIDS, ExecOutcome.DISK, ExecOutcome.TIMEOUT]
)
async def test_what_runs_out_once_the_solution_runs_is_the_policys(outcome: ExecOutcome) -> None:
    calls = await called(outcome, ready=True)
    assert calls.outcomes == ()
    assert calls.problem


def test_the_wall_limit_starves_nobody_who_keeps_to_the_cpu_limit() -> None:
    assert WALL_LIMIT_S >= MAX_CONCURRENT * CPU_LIMIT_S
    assert WALL_LIMIT_S < SPEC.timeout_s <= DOMAINS["tiny_function"].limits.verify_timeout_s
