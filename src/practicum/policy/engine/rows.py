"""Requests and the rows they share, without tensors.

Samples that agree so far are one row of the batch: the row draws a token per sample and forks into
its distinct continuations. `arrange` says which row goes where: all of forking and compaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from practicum.policy.engine.sampling import uniforms
from practicum.policy.engine.stops import StopSearch
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Shape
from practicum.protocols import Completion, Sampling
from practicum.types import StopReason, WeightVersion


@dataclass(slots=True, eq=False)
class Request:
    """One completion under way: what was asked, and what was sampled so far."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    fills_context: bool = False
    """Whether the last allowed token is also the last that the model can hold."""
    abandoned: bool = False
    """Nobody waits for it any more; it leaves the batch at the next step."""
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[WeightVersion] = field(default_factory=list[WeightVersion])
    _uniforms: list[float] = field(init=False)
    _search: StopSearch | None = None

    def __post_init__(self) -> None:
        self._uniforms = uniforms(self.sampling.seed, self.sampling.max_new_tokens).tolist()

    @property
    def order(self) -> tuple[object, ...]:
        """What batches are sorted by, so that they do not depend on the order of arrival."""
        sampling = self.sampling
        return (
            self.prompt_ids,
            sampling.seed,
            sampling.temperature,
            sampling.max_new_tokens,
            sampling.stop,
        )

    @property
    def next_uniform(self) -> float:
        return self._uniforms[len(self.token_ids)]

    def push(
        self, token_id: int, logprob: float, version: WeightVersion, tokens: Tokens
    ) -> Completion | None:
        """Take a sampled token; the completion if it was the last one."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if token_id in tokens.eos_ids:
            return self._complete(StopReason.EOS, tokens.decode(self.token_ids[:-1]))
        if self.sampling.stop:
            self._search = self._search or StopSearch(self.sampling.stop, tokens.decode)
            before = self._search.push(token_id)
            if before is not None:
                return self._complete(StopReason.STOP_STRING, before)
        if len(self.token_ids) < self.sampling.max_new_tokens:
            return None
        reason = StopReason.CONTEXT_END if self.fills_context else StopReason.MAX_TOKENS
        return self._complete(reason, tokens.decode(self.token_ids))

    def _complete(self, reason: StopReason, text: str) -> Completion:
        return Completion(
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            versions=tuple(self.versions),
            text=text,
            stop_reason=reason,
        )


@dataclass(slots=True)
class Row:
    """Requests with the same prompt and the same tokens so far."""

    prompt: int
    """Index of the prompt in the batch."""
    token_id: int
    """Last token, the input of the next step; -1 right after the prompt."""
    requests: list[Request]


def arrange(num_children: Sequence[int]) -> list[tuple[int, int]]:
    """Place the continuations of rows: (parent row, which of its children) for every new row.

    A row's first child stays where its parent is; the others fill the places of ended rows, then
    the end. So as few rows as possible move. `num_children[i] == 0` says that row i ended.

    Example:
        arrange([1, 0, 3]) == [(0, 0), (2, 1), (2, 0), (2, 2)]
    """
    total = sum(num_children)
    placed: list[tuple[int, int] | None] = [
        (parent, 0) if parent < len(num_children) and num_children[parent] else None
        for parent in range(total)
    ]
    waiting = iter(
        [
            (parent, child)
            for parent, count in enumerate(num_children)
            for child in range(count)
            if child or parent >= total
        ]
    )
    return [place or next(waiting) for place in placed]


def chunks(
    requests: Sequence[Request], shape: Shape, max_rows: int, max_bytes: int
) -> list[list[Request]]:
    """Cut sorted requests into batches whose keys and values fit into `max_bytes` of float32.

    A request that does not fit even alone is a batch of its own.
    """
    bytes_per_token = 2 * 4 * shape.num_layers * shape.num_kv_heads * shape.head_size
    result: list[list[Request]] = []
    prompts: set[tuple[int, ...]] = set()
    longest = most_new = 0
    for request in requests:
        prompts.add(request.prompt_ids)
        longest = max(longest, len(request.prompt_ids))
        most_new = max(most_new, request.sampling.max_new_tokens)
        size = len(result[-1]) + 1 if result else 1
        needed = (len(prompts) * longest + size * most_new) * bytes_per_token
        if not result or size > max_rows or needed > max_bytes:
            result.append([])
            prompts = {request.prompt_ids}
            longest, most_new = len(request.prompt_ids), request.sampling.max_new_tokens
        result[-1].append(request)
    return result
