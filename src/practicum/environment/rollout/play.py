"""One policy plays one task: tokens in, tokens out, nothing re-tokenised."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from practicum.environment.domains.domain import Limits
from practicum.protocols import Policy
from practicum.sampling import Sampling
from practicum.types import Message, Outcome, Segment, Task, Trajectory, Usage


@dataclass(frozen=True, slots=True)
class AttemptKey:
    """Which attempt this is. Ids and random streams follow from it, so a repeat is equal."""

    group_id: str
    sample: int
    seed: int
    """The run's root seed."""

    @staticmethod
    def training(slot: int, sample: int, seed: int) -> AttemptKey:
        return AttemptKey(group_id=f"{slot:06d}", sample=sample, seed=seed)

    @property
    def trajectory_id(self) -> str:
        return f"{self.group_id}-{self.sample:02d}"

    @property
    def sampling_seed(self) -> int:
        """63 bits that no other attempt of any run with this seed shares."""
        text = f"{self.seed}/{self.trajectory_id}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


async def play(
    task: Task, policy: Policy, limits: Limits, key: AttemptKey, temperature: float
) -> Trajectory:
    """Let the policy speak once. The outcome stays provisional until a verifier has looked."""
    prompt_ids = policy.render(task.prompt)
    started = time.perf_counter()
    completion = await policy.generate(
        prompt_ids,
        Sampling(
            max_new_tokens=limits.max_new_tokens,
            temperature=temperature,
            stop=limits.stop,
            seed=key.sampling_seed,
        ),
    )
    segment = Segment.of(prompt_ids, completion.token_ids, completion.logprobs, completion.versions)
    return Trajectory(
        id=key.trajectory_id,
        group_id=key.group_id,
        task_id=task.id,
        sample=key.sample,
        messages=(*task.prompt, Message("assistant", completion.text)),
        segments=(segment,),
        stop_reason=completion.stop_reason,
        outcome=Outcome.SCORED,
        usage=Usage(
            prompt_tokens=len(prompt_ids),
            sampled_tokens=len(completion.token_ids),
            turns=1,
            generate_s=time.perf_counter() - started,
        ),
    )
