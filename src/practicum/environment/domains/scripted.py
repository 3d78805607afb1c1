"""An attempt that nobody sampled: to ask a verifier what it thinks of a text.

Quality control and tests use it; it holds no tokens, so it can never be trained on.
"""

from __future__ import annotations

import hashlib

from practicum.types import Message, Outcome, StopReason, Task, Trajectory


def scripted(
    task: Task, text: str, stop_reason: StopReason = StopReason.STOP_STRING, sample: int = 0
) -> Trajectory:
    """The attempt at `task` that would have said `text`."""
    name = hashlib.sha256(f"{task.id}/{sample}/{text}".encode(errors="surrogatepass")).hexdigest()
    return Trajectory(
        id=f"scripted-{name[:16]}",
        group_id=f"scripted-{task.id}",
        task_id=task.id,
        sample=sample,
        messages=(*task.prompt, Message("assistant", text)),
        segments=(),
        stop_reason=stop_reason,
        outcome=Outcome.SCORED,
    )
