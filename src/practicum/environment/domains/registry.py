"""All domains by name: the built-in ones, one line each, and those of installed packages.

A package adds one with an entry point of the group `practicum.domains`, whose name is the domain's
and whose value is a `Domain`. It is imported when it is first asked for, so a broken plug-in harms
only those who use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from practicum.environment.domains import (
    addition,
    max_of_three,
    reversal,
    tiny_function,
    transitive,
)
from practicum.environment.domains.domain import Domain
from practicum.errors import UsageError, did_you_mean

GROUP = "practicum.domains"
RESERVED = frozenset({"mean", "std", "num", "low", "high", "signal_share", "dropped"})
"""What metrics call `reward/<name>` or `groups/<name>` beside the domains."""

BUILT_IN: tuple[Domain, ...] = (
    max_of_three.DOMAIN,
    reversal.DOMAIN,
    transitive.DOMAIN,
    addition.DOMAIN,
    tiny_function.DOMAIN,
)


def _check_name(name: str, origin: str) -> None:
    if name in RESERVED:
        raise UsageError(f"{origin} has the name of a metric; rename it")
    if not re.fullmatch("[a-z0-9_]+", name):
        raise UsageError(f"{origin} has a name of other characters than a-z, 0-9 and _; rename it")


class Domains(Mapping[str, Domain]):
    """Domains by name. Knows the names of plug-ins without importing them."""

    def __init__(self, built_in: Iterable[Domain]) -> None:
        self._built_in = {domain.name: domain for domain in built_in}
        for name in self._built_in:
            _check_name(name, f"the built-in domain {name!r}")
        self._loaded: dict[str, Domain] = {}

    @cached_property
    def _plugins(self) -> dict[str, tuple[EntryPoint, ...]]:
        found = entry_points(group=GROUP)
        return {name: tuple(found.select(name=name)) for name in sorted(found.names)}

    def __getitem__(self, name: str) -> Domain:
        if name in self._loaded:
            return self._loaded[name]
        if name in self._plugins:
            self._loaded[name] = self._load(name)
            return self._loaded[name]
        return self._built_in[name]

    def __iter__(self) -> Iterator[str]:
        return iter(
            [*self._built_in, *(name for name in self._plugins if name not in self._built_in)]
        )

    def __len__(self) -> int:
        return len(self._built_in.keys() | self._plugins.keys())

    def _load(self, name: str) -> Domain:
        point, *others = self._plugins[name]
        origin = f"the domain plug-in {name!r} ({point.value}, {_package(point)})"
        _check_name(name, origin)
        if others or name in self._built_in:
            rival = _package(others[0]) if others else "built in"
            raise UsageError(f"{origin} has the name of another domain, {rival}; uninstall one")
        try:
            domain = point.load()
        except Exception as error:
            raise UsageError(
                f"{origin} cannot be imported: {type(error).__name__}: {error}. "
                "Repair or uninstall that package, or leave the domain out."
            ) from error
        if not isinstance(domain, Domain):
            raise UsageError(f"{origin} is a {type(domain).__name__}, not a practicum Domain")
        if domain.name != name:
            raise UsageError(f"{origin} calls itself {domain.name!r}; both names must agree")
        return domain


DOMAINS: Mapping[str, Domain] = Domains(BUILT_IN)


def get_domain(name: str, domains: Mapping[str, Domain] = DOMAINS) -> Domain:
    """The domain of this name. Raises UsageError with a hint if there is none."""
    try:
        return domains[name]
    except KeyError:
        raise UsageError(f"there is no domain {name!r}.{did_you_mean(name, domains)}") from None


def _package(point: EntryPoint) -> str:
    return f"from {point.dist.name} {point.dist.version}" if point.dist else "of no package"
