"""`practicum doctor`, `domains` and `check`: what this machine can do, what there is to practise,
and whether it is sound.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from practicum.environment.domains.domain import Domain
from practicum.environment.domains.registry import DOMAINS, get_domain
from practicum.environment.domains.reward import NoSandboxes
from practicum.environment.qc.solvability import check_domain
from practicum.environment.sandbox import open_pool
from practicum.environment.sandbox.probe import capabilities
from practicum.verdicts import Finding

GB = 1e9
NEEDED_MEMORY_GB = 5.0
"""Of the demo."""
NEEDED_DISK_GB = 8.0
"""Of the demo: the model, three checkpoints while one is written, the exported model."""

_CPU_FEATURES = {
    "amx_bf16": "AMX",
    "avx512_bf16": "AVX-512 bf16",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
_MARKS = {"ok": ("ok", "green"), "soft": ("weak", "yellow"), "missing": ("missing", "red")}


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: Literal["ok", "soft", "missing"]
    found: str
    remedy: str = ""


def examine(*, as_json: bool) -> int:
    """Print all checks. Returns 0 if everything needed is there, 4 if something is missing."""
    checks = [*_machine(), *_sandbox()]
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=1))
    else:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ("", "", "found", "to mend it"):
            table.add_column(column, overflow="fold")
        for check in checks:
            mark, style = _MARKS[check.state]
            table.add_row(Text(mark, style), check.name, Text(check.found), Text(check.remedy))
        Console().print(table)
    return 4 if any(check.state == "missing" for check in checks) else 0


def print_domains(*, as_json: bool) -> None:
    """All domains with skill, levels and needs."""
    rows = [
        {
            "name": domain.name,
            "skill": domain.skill,
            "levels": list(domain.levels),
            "needs_sandbox": domain.needs_sandbox,
            "verifier": asdict(domain.verifier.id),
            "summary": domain.summary,
        }
        for domain in DOMAINS.values()
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("domain", "skill", "levels", "sandbox", "what it asks for"):
        table.add_column(column)
    for domain in DOMAINS.values():
        levels = ", ".join(f"{level:g}" for level in domain.levels)
        needs = "yes" if domain.needs_sandbox else ""
        table.add_row(*map(Text, (domain.name, domain.skill, levels, needs, domain.summary)))
    Console().print(table)


def check_domains(names: Sequence[str], *, num_tasks: int, as_json: bool, unsafe: bool) -> int:
    """Quality control of the named domains, or of all. Returns 3 if anything was found."""
    domains = [get_domain(name) for name in names] or list(DOMAINS.values())
    needs_sandbox = any(domain.needs_sandbox for domain in domains)
    sandboxes = open_pool(unsafe=unsafe) if needs_sandbox else NoSandboxes()

    async def check_all(domains: Sequence[Domain]) -> list[Finding]:
        found: list[Finding] = []
        for domain in domains:
            findings = await check_domain(domain, sandboxes, num_tasks)
            found += findings
            if not as_json:
                print(f"{domain.name}: {len(findings) or 'no'} findings")
        return found

    try:
        findings = asyncio.run(check_all(domains))
    finally:
        sandboxes.close()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            print(f"  {finding.domain} {finding.kind}: {finding.evidence}")
    return 3 if findings else 0


def _machine() -> list[Check]:
    flags = _cpu_flags()
    features = [name for flag, name in _CPU_FEATURES.items() if flag in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GB
    free = shutil.disk_usage(Path.cwd()).free / GB
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return [
        Check("system", "ok", f"{system}, torch {version('torch')}"),
        Check(
            "processor",
            "ok" if features else "soft",
            f"{os.cpu_count()} cores, {', '.join(features) or 'no wide instructions known to us'}",
            "" if features else "training works, several times slower than with AVX2",
        ),
        _kernels(),
        Check(
            "memory",
            "ok" if memory >= NEEDED_MEMORY_GB else "soft",
            f"{memory:.0f} GB",
            "" if memory >= NEEDED_MEMORY_GB else "the demo needs 5 GB; try `--model tiny`",
        ),
        Check(
            "disk",
            "ok" if free >= NEEDED_DISK_GB else "soft",
            f"{free:.0f} GB free here",
            "" if free >= NEEDED_DISK_GB else "the demo needs 8 GB; choose a place with `--output`",
        ),
    ]


def _kernels() -> Check:
    from practicum.policy.model.native.build import load, missing

    if (wanting := missing()) is not None:
        return Check("kernels", "soft", f"none: {wanting}", "plain PyTorch runs, slower")
    found = load() is not None
    return Check(
        "kernels",
        "ok" if found else "soft",
        "compiled" if found else "they do not compile",
        "" if found else "see the warning above; plain PyTorch runs, slower",
    )


def _sandbox() -> list[Check]:
    found = capabilities()
    if found.isolation == "none":
        remedy = "; ".join(found.remedies) or "run on Linux"
        return [Check("isolation", "missing", found.missing, remedy)]
    checks = [Check("isolation", "ok", "namespaces: " + ", ".join(found.namespaces))]
    for resource, limit in found.limits.items():
        state = "ok" if limit.strength == "hard" else "soft"
        remedy = "; ".join(found.remedies) if state == "soft" else ""
        checks.append(Check(f"{resource} limit", state, f"{limit.strength}: {limit.how}", remedy))
    if not found.python:
        checks.append(Check("python inside", "soft", "this interpreter does not run in a sandbox"))
    return checks


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()
