"""Completions that belong to a language: a JSON schema, a regular expression, a choice of strings.

`llguidance` keeps the parser; we keep a compiled grammar for each constraint, and a matcher for
each request that says which tokens may come next. A completion can end only where it is complete;
then every token that ends it is allowed. Tokens are never changed after they were sampled.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from practicum.errors import UsageError
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = npt.NDArray[np.bool_]

MAX_GRAMMARS = 128
"""Compiled grammars kept for each tokenizer, the last used."""

SILENT = 0
"""llguidance's log level; its errors reach the caller as ours."""


@dataclass(slots=True)
class Matcher:
    """Where one completion is in its language. Advance it by every token that is sampled."""

    _parser: LLMatcher
    _vocab_size: int
    _end_ids: list[int]

    @property
    def complete(self) -> bool:
        """Whether the completion may end here."""
        return self._parser.is_accepting()

    def allowed(self) -> Mask:
        """Which tokens may come next, bool [vocabulary]. None at all if it can only fail."""
        bits = np.frombuffer(self._parser.compute_bitmask(), dtype=np.uint8)
        known = np.unpackbits(bits, bitorder="little")[: self._vocab_size].view(np.bool_)
        self._check()
        allowed_V = np.zeros(self._vocab_size, dtype=np.bool_)
        allowed_V[: len(known)] = known
        allowed_V[self._end_ids] = self._parser.is_accepting()
        return allowed_V

    def allowed_along(self, drafts: Sequence[int]) -> list[Mask]:
        """What is allowed here and after each draft, up to the first that is not; changes nothing.

        The first mask is for the place of `drafts[0]`; as many follow as drafts are allowed.
        """
        masks = [self.allowed()]
        num_ahead = 0
        for token_id in drafts:
            if token_id in self._end_ids or not masks[-1][token_id]:
                break
            self.advance(token_id)
            num_ahead += 1
            masks.append(self.allowed())
        if num_ahead:
            self._parser.rollback(num_ahead)
        return masks

    def advance(self, token_id: int) -> None:
        """Take a sampled token, one that was allowed. A token that ends the completion is none."""
        if token_id not in self._end_ids:
            self._parser.consume_token(token_id)
            self._check()

    def _check(self) -> None:
        if self._parser.is_error():
            raise UsageError(
                "the constraint cannot be followed any further: "
                f"{_first_line(self._parser.get_error())}; simplify it"
            )


class Grammars:
    """Compiles constraints for one tokenizer, each once while it is in use."""

    def __init__(self, tokens: Tokens, vocab_size: int) -> None:
        """`vocab_size` is the model's; ids that the tokenizer does not have are never allowed."""
        self._tokens = tokens
        self._vocab_size = vocab_size
        self._compiled = functools.lru_cache(MAX_GRAMMARS)(self._compile)

    def matcher(self, constraint: Constraint, stop_token_ids: Iterable[int] = ()) -> Matcher:
        """A matcher at the start of the language.

        Raises UsageError if the constraint is not well formed, matches nothing or is not supported,
        or where llguidance is not installed.
        """
        if not self._tokens.eos_ids:
            raise UsageError(
                f"a completion with a constraint could not end: the tokenizer in "
                f"{self._tokens.folder} names no token that ends a text; name one as eos_token in "
                "its tokenizer_config.json"
            )
        end_ids = sorted(self._tokens.eos_ids | set(stop_token_ids))
        return Matcher(self._compiled(constraint).deep_copy(), self._vocab_size, end_ids)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        guidance = _llguidance()
        try:
            grammar = _grammar(guidance, constraint)
        except ValueError as error:
            raise _refused(constraint, str(error)) from error
        parser: LLMatcher = guidance.LLMatcher(self._vocabulary, grammar, log_level=SILENT)
        if parser.is_error():
            raise _refused(constraint, parser.get_error())
        probe = parser.deep_copy()
        probe.compute_bitmask()
        if probe.is_error():
            raise _refused(constraint, f"it matches no text ({_first_line(probe.get_error())})")
        return parser

    @functools.cached_property
    def _vocabulary(self) -> LLTokenizer:
        path = self._tokens.folder / "tokenizer.json"
        if not path.exists():
            raise UsageError(
                f"constraints need {path}; save the tokenizer once with transformers' "
                "save_pretrained to write it"
            )
        try:
            return _llguidance().LLTokenizer(
                path.read_text(encoding="utf-8"),
                n_vocab=self._vocab_size,
                eos_token=sorted(self._tokens.eos_ids),
            )
        except ValueError as error:
            raise UsageError(f"llguidance cannot use {path} for constraints: {error}") from error


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(
            "constraints need the package llguidance; install it with "
            "`pip install 'practicum[constraints]'`"
        ) from error
    return llguidance


def _grammar(guidance: Any, constraint: Constraint) -> str:
    """In llguidance's own notation. Raises ValueError if the text is not well formed."""
    match constraint.kind:
        case "regex":
            return guidance.LLMatcher.grammar_from_regex(constraint.text)
        case "json_schema":
            if not isinstance(json.loads(constraint.text), dict):
                raise ValueError("a JSON schema is an object")
            return guidance.LLMatcher.grammar_from_json_schema(constraint.text)
        case "choice":
            choices = json.loads(constraint.text)
            if not isinstance(choices, list) or not choices:
                raise ValueError("a choice is a JSON list of strings, and not empty")
            if not all(isinstance(choice, str) for choice in choices):  # pyright: ignore[reportUnknownVariableType]
                raise ValueError("a choice is a JSON list of strings and nothing else")
            quoted = [json.dumps(choice, ensure_ascii=False) for choice in choices]  # pyright: ignore[reportUnknownVariableType]
            return guidance.LLMatcher.grammar_from_lark(f"start: {' | '.join(quoted)}")


def _refused(constraint: Constraint, why: str) -> UsageError:
    shown = constraint.text if len(constraint.text) <= 80 else f"{constraint.text[:77]}..."
    return UsageError(f"the {constraint.kind} constraint {shown!r} cannot be used: {why.strip()}")


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
