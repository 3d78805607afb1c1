"""Speed as a multiple of starting a bare process, measured in turn: times are the machine's."""

import subprocess
import time

from practicum.environment.sandbox.local import LocalSandboxPool
from practicum.protocols import SandboxSpec

NUM_ROUNDS = 50
MOST_FOR_CREATION = 25
MOST_FOR_A_COMMAND = 15


async def test_sandboxes_and_commands_cost_little_more_than_a_process(
    pool: LocalSandboxPool,
) -> None:
    bare_s: list[float] = []
    create_s: list[float] = []
    command_s: list[float] = []
    for _ in range(NUM_ROUNDS):
        started = time.perf_counter()
        subprocess.run(["true"], check=True)
        bare_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        async with pool.open(SandboxSpec()) as sandbox:
            create_s.append(time.perf_counter() - started)
            started = time.perf_counter()
            await sandbox.exec(["true"])
            command_s.append(time.perf_counter() - started)
    # The fastest of many is what the code costs; the others are what else the machine does.
    bare, create, command = min(bare_s), min(create_s), min(command_s)
    assert create < MOST_FOR_CREATION * bare
    assert command < MOST_FOR_A_COMMAND * bare
