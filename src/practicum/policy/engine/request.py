"""One completion under way: what was asked and what was sampled so far, without tensors or text."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.sampling import Sampling
from practicum.types import StopReason, WeightVersion


@dataclass(slots=True, eq=False)
class Request:
    """What one caller waits for. The lists are parallel: one entry for every sampled token.

    The engine pushes tokens and sets `stop_reason` after the last one; the scheduler only reads
    them, in `Scheduler.advance`.
    """

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    id: str = ""
    salt: tuple[str, ...] = ()
    """What keys and values depend on besides tokens and weights, such as adapter and dtype: only
    requests with the same salt share pages."""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[WeightVersion] = field(default_factory=list[WeightVersion])
    log_kept_mass: list[float] = field(default_factory=list[float])
    stop_reason: StopReason | None = None
    """Why it ended; None while it is under way."""
    reused_tokens: int = 0
    """Prompt tokens whose keys and values were there already."""

    def push(
        self, token_id: int, logprob: float, version: WeightVersion, log_kept_mass: float = 0.0
    ) -> None:
        """Take a sampled token and what is known of it."""
        assert self.stop_reason is None, "a completion that ended takes no more tokens"
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self.log_kept_mass.append(log_kept_mass)

    @property
    def num_left(self) -> int:
        """How many more tokens it may sample."""
        return self.sampling.max_new_tokens - len(self.token_ids)
