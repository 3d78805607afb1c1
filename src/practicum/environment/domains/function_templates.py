"""Templates of tiny functions: each takes its parameters and states the function three times over.

The one thing to know: the reference source (`body`) and the host's own implementation (`compute`)
are written independently; the expected values come from `compute`, so the check that the oracle
passes compares the two.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from practicum.environment.domains.sandboxed_call import Value

LETTERS = "abcdefghijklmnopqrstuvwxyz"
NUM_TESTS = 10


@dataclass(frozen=True, slots=True)
class TinyFunction:
    """One function to write.

    Example:
        add(7) == TinyFunction("add_7", "x", "Return x plus 7.", "x + 7", compute=..., draw=...)
    """

    name: str
    """Says template and parameters, so it is also what the split is decided by."""
    parameter: str
    doc: str
    body: str
    """The expression after `return`."""
    compute: Callable[[Value], Value]
    draw: Callable[[random.Random], list[Value]]
    """Test inputs, many of them at the edges, where a wrong function differs from the right one."""


def add(k: int) -> TinyFunction:
    return on_number(f"add_{k}", f"Return x plus {k}.", f"x + {k}", lambda x: x + k)


def subtract(k: int) -> TinyFunction:
    return on_number(f"subtract_{k}", f"Return x minus {k}.", f"x - {k}", lambda x: x - k)


def multiply(k: int) -> TinyFunction:
    return on_number(f"times_{k}", f"Return x times {k}.", f"x * {k}", lambda x: x * k)


def remainder(k: int) -> TinyFunction:
    doc = f"Return the remainder of x divided by {k}."
    return on_number(f"remainder_{k}", doc, f"x % {k}", lambda x: x - x // k * k)


def item_at(k: int) -> TinyFunction:
    doc = f"Return the item of items at index {k}."
    return on_list(f"item_{k}", doc, f"items[{k}]", lambda items: items[k])


def last_item(k: int) -> TinyFunction:
    doc = f"Return item number {k} of items, counted from the end."
    return on_list(f"item_{k}_from_end", doc, f"items[-{k}]", lambda items: items[len(items) - k])


def first_items(k: int) -> TinyFunction:
    doc = f"Return the first {k} items of items."
    return on_list(f"first_{k}", doc, f"items[:{k}]", lambda items: [items[i] for i in range(k)])


def append(k: int) -> TinyFunction:
    doc = f"Return items with {k} added at the end."
    return on_list(f"append_{k}", doc, f"items + [{k}]", lambda items: [*items, k])


def count(k: int) -> TinyFunction:
    doc = f"Return how many times {k} is in items."
    body = f"items.count({k})"
    return on_list(f"count_{k}", doc, body, lambda items: sum(i == k for i in items), edge=k)


def repeat(k: int) -> TinyFunction:
    doc = f"Return text repeated {k} times."
    return on_text(f"repeat_{k}", doc, f"text * {k}", lambda text: "".join([text] * k))


def replace(old: str, new: str) -> TinyFunction:
    doc = f"Return text with every '{old}' replaced by '{new}'."
    body = f"text.replace('{old}', '{new}')"
    return on_text(
        f"replace_{old}_{new}", doc, body, lambda text: new.join(text.split(old)), edge=old
    )


def starts_with(letter: str) -> TinyFunction:
    doc = f"Return True if text starts with '{letter}', else False."
    body = f"text.startswith('{letter}')"
    return on_text(f"starts_with_{letter}", doc, body, lambda text: text[:1] == letter, edge=letter)


def is_multiple(k: int) -> TinyFunction:
    doc = f"Return True if x is a multiple of {k}, else False."
    edges = (0, 1, k, k + 1, 3 * k, 3 * k - 1)
    return on_number(
        f"is_multiple_of_{k}", doc, f"x % {k} == 0", lambda x: k * (x // k) == x, edges
    )


def clamp(low: int, high: int) -> TinyFunction:
    doc = f"Return x, but not less than {low} and not more than {high}."
    body = f"max({low}, min({high}, x))"
    edges = (low - 1, low, low + 1, high - 1, high, high + 1)
    return on_number(f"clamp_{low}_{high}", doc, body, lambda x: sorted((low, x, high))[1], edges)


def is_between(low: int, high: int) -> TinyFunction:
    doc = f"Return True if x is from {low} to {high} inclusive, else False."
    edges = (low - 1, low, low + 1, high - 1, high, high + 1)
    return on_number(
        f"is_from_{low}_to_{high}",
        doc,
        f"{low} <= x <= {high}",
        lambda x: x in range(low, high + 1),
        edges,
    )


def count_above(k: int) -> TinyFunction:
    doc = f"Return how many items are greater than {k}."
    body = f"sum(1 for item in items if item > {k})"
    return on_list(
        f"count_above_{k}", doc, body, lambda items: len([i for i in items if i > k]), edge=k
    )


def keep_below(k: int) -> TinyFunction:
    doc = f"Return a list of the items that are less than {k}."
    body = f"[item for item in items if item < {k}]"
    return on_list(f"keep_below_{k}", doc, body, lambda items: [i for i in items if k > i], edge=k)


def count_multiples(k: int) -> TinyFunction:
    doc = f"Return how many items are multiples of {k}."
    body = f"sum(1 for item in items if item % {k} == 0)"
    return on_list(
        f"count_multiples_of_{k}",
        doc,
        body,
        lambda items: [i % k for i in items].count(0),
        edge=2 * k,
    )


def add_to_each(k: int) -> TinyFunction:
    doc = f"Return a list of each item plus {k}."
    body = f"[item + {k} for item in items]"
    return on_list(f"add_{k}_to_each", doc, body, lambda items: [k + i for i in items])


def on_number(
    name: str,
    doc: str,
    body: str,
    compute: Callable[[int], Value],
    edges: tuple[int, ...] = (0, 1, -1),
) -> TinyFunction:
    """A function of one whole number `x`."""

    def checked(x: Value) -> Value:
        assert isinstance(x, int)
        return compute(x)

    def draw(rng: random.Random) -> list[Value]:
        return [*edges, *(rng.randint(-200, 400) for _ in range(NUM_TESTS - len(edges)))]

    return TinyFunction(name, "x", doc, body, checked, draw)


def on_list(
    name: str, doc: str, body: str, compute: Callable[[list[int]], Value], edge: int = 0
) -> TinyFunction:
    """A function of a list of whole numbers, in which `edge` and its neighbours turn up often."""

    def checked(items: Value) -> Value:
        assert isinstance(items, list)
        return compute([item for item in items if isinstance(item, int)])

    def draw_one(rng: random.Random) -> Value:
        near = (edge - 1, edge, edge, edge + 1)
        return [
            rng.choice(near) if rng.random() < 0.5 else rng.randint(0, 120)
            for _ in range(rng.randint(6, 9))
        ]

    return TinyFunction(
        name, "items", doc, body, checked, lambda rng: [draw_one(rng) for _ in range(NUM_TESTS)]
    )


def on_text(
    name: str, doc: str, body: str, compute: Callable[[str], Value], edge: str = "a"
) -> TinyFunction:
    """A function of a lower-case string, in which the letter `edge` turns up often."""

    def checked(text: Value) -> Value:
        assert isinstance(text, str)
        return compute(text)

    def draw_one(rng: random.Random) -> Value:
        return "".join(
            edge if rng.random() < 0.4 else rng.choice(LETTERS) for _ in range(rng.randint(1, 8))
        )

    return TinyFunction(
        name, "text", doc, body, checked, lambda rng: [draw_one(rng) for _ in range(NUM_TESTS)]
    )
