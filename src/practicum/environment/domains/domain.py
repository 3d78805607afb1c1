"""What a domain is: one source of tasks, one verifier, and the limits of an attempt.

The one thing to know: the split of a task follows from *what it asks*, not from a seed. `split_of`
hashes the content of the question, so a training task can never turn up in an evaluation, whichever
seed, level, order of words or few-shot preamble it is drawn with.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from practicum.errors import UsageError
from practicum.protocols import Verifier
from practicum.types import Split, Task


class NoSuchTask(UsageError):
    """A domain has nothing to draw at this level and split."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one attempt may go.

    Example:
        Limits(max_new_tokens=10, stop=("\\n",), verify_timeout_s=5.0)
    """

    max_new_tokens: int
    """Of one turn."""
    stop: tuple[str, ...]
    verify_timeout_s: float = 5.0
    """Wall-clock seconds, after which the verifier (not the policy) is to blame."""


@dataclass(frozen=True, slots=True)
class Domain:
    """One skill to practise. Third parties add theirs by an entry point in `practicum.domains`.

    Example:
        >>> domain = get_domain("max_of_three")
        >>> task = domain.draw(random.Random(0), 0.0, "train")
        >>> domain.oracle(task)
        '63'
    """

    name: str
    summary: str
    """One line for `practicum domains`."""
    skill: str
    """What is practised, in a word or two: `comparison`, `coding`."""
    levels: tuple[float, ...]
    """Every difficulty that `draw` accepts, ascending, each in [0, 1]."""
    draw: Callable[[random.Random, float, Split], Task]
    """A task of this level and split, a pure function of the generator. Raises NoSuchTask."""
    oracle: Callable[[Task], str]
    """What a perfect policy would say; the verifier must give it the score 1."""
    verifier: Verifier
    limits: Limits
    needs_sandbox: bool = False
    """Whether the verifier runs code of the policy, so that a pool of sandboxes must be there."""
    baseline: float = 0.0
    """Score of the best answer that ignores the question; a pass rate means nothing below it."""


def split_of(content: str) -> Split:
    """The split that this content belongs to, for ever: one in four is held out.

    `content` says what is asked and nothing else; two wordings of one question must share it.
    """
    return "eval" if hashlib.sha256(content.encode()).digest()[0] % 4 == 0 else "train"


def source_digest(*parts: ModuleType | str) -> str:
    """Digest of modules' sources and of texts: what makes two verifiers the same verifier."""
    sources = [part if isinstance(part, str) else inspect.getsource(part) for part in parts]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()
