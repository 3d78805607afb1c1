"""Domains by name, from here and from other packages."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.environment.domains import DOMAINS, VERIFIER_REGISTRY, get_domain
from practicum.environment.domains.registry import BUILT_IN, RESERVED, Domains
from practicum.environment.domains.scripted import scripted
from practicum.errors import UsageError
from practicum.observe.step_metrics import step_metrics
from practicum.verdicts import Group, Report, Verdict

GOOD = """
from dataclasses import replace
from practicum.environment.domains.addition import DOMAIN
DOMAIN = replace(DOMAIN, name="sums_abroad")
"""

Install = Callable[[str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a real package with one entry point on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install_one(module: str, entry_point: str, source: str) -> None:
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[practicum.domains]\n{entry_point}\n")
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install_one


def test_the_five_built_in_domains_are_there_in_order() -> None:
    names = ["max_of_three", "reversal", "transitive", "addition", "tiny_function"]
    assert list(Domains(BUILT_IN))[:5] == names
    assert len({DOMAINS[name].skill for name in names}) == 5


def test_a_typo_gets_a_hint() -> None:
    with pytest.raises(UsageError, match=r"no domain 'reversl'\. Did you mean 'reversal'"):
        get_domain("reversl")


def test_a_plugin_is_found_by_name_and_imported_only_when_asked_for(install: Install) -> None:
    install("abroad", "sums_abroad = abroad:DOMAIN", GOOD)
    domains = Domains(BUILT_IN)
    assert "sums_abroad" in list(domains)
    assert len(domains) == len(list(domains))
    assert "abroad" not in sys.modules
    assert get_domain("sums_abroad", domains).name == "sums_abroad"
    assert "abroad" in sys.modules


def test_a_broken_plugin_is_named_and_leaves_the_others_alone(install: Install) -> None:
    install("broken", "bad = broken:DOMAIN", "import no_such_module_anywhere")
    domains = Domains(BUILT_IN)
    assert get_domain("addition", domains).name == "addition"
    with pytest.raises(UsageError, match=r"plug-in 'bad' .*from broken 1\.0.*ModuleNotFoundError"):
        get_domain("bad", domains)


@pytest.mark.parametrize(
    ("entry_point", "message"),
    [
        ("addition = other:DOMAIN", "has the name of another domain, built in"),
        ("elsewhere = other:DOMAIN", "calls itself 'sums_abroad'"),
        ("number = other:GROUP", "is a str, not a practicum Domain"),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused(
    install: Install, entry_point: str, message: str
) -> None:
    install("other", entry_point, GOOD + "GROUP = 'x'\n")
    with pytest.raises(UsageError, match=message):
        get_domain(entry_point.split(" ")[0], Domains(BUILT_IN))


@pytest.mark.parametrize("name", [*sorted(RESERVED), "Sums", "sums-abroad", "sums/abroad"])
def test_a_name_that_metrics_cannot_tell_apart_is_refused(install: Install, name: str) -> None:
    install("other", f"{name} = other:DOMAIN", GOOD.replace("sums_abroad", name))
    with pytest.raises(UsageError, match=rf"'{name}' .*from other 1\.0.*; rename it"):
        get_domain(name, Domains(BUILT_IN))
    with pytest.raises(UsageError, match=f"built-in domain '{name}' .*; rename it"):
        Domains([replace(BUILT_IN[0], name=name)])


def test_the_names_that_metrics_use_themselves_are_reserved() -> None:
    task = DOMAINS["addition"].draw(random.Random(0), 0.0, "train")
    tried = scripted(task, task.answer)
    verdict = Verdict(1.0, DOMAINS["addition"].verifier.id)
    group = Group(tried.group_id, task, (tried,), {tried.id: verdict})
    metrics = step_metrics(0, [group], [], Report(0, (), {}, ()))
    families = [name.partition("/") for name in metrics]
    used = {name for family, _, name in families if family in ("reward", "groups")}
    assert used - {"addition"} <= RESERVED


def test_two_plugins_of_one_name_are_refused(install: Install) -> None:
    install("first", "sums_abroad = first:DOMAIN", GOOD)
    install("second", "sums_abroad = second:DOMAIN", GOOD)
    with pytest.raises(UsageError, match="has the name of another domain"):
        get_domain("sums_abroad", Domains(BUILT_IN))


def test_the_verifier_registry_shows_the_domains_and_cannot_be_changed() -> None:
    assert list(VERIFIER_REGISTRY) == list(DOMAINS)
    assert VERIFIER_REGISTRY["addition"] is DOMAINS["addition"].verifier
    with pytest.raises(TypeError):
        VERIFIER_REGISTRY["addition"] = DOMAINS["reversal"].verifier  # pyright: ignore[reportIndexIssue]


def test_a_verifier_is_identified_by_its_source() -> None:
    exact, tests = DOMAINS["addition"].verifier.id, DOMAINS["tiny_function"].verifier.id
    assert len(exact.digest) == len(tests.digest) == 64
    assert exact.digest != tests.digest
    assert exact == DOMAINS["reversal"].verifier.id
