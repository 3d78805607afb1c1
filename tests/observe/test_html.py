"""The report: complete, self-contained, and deaf to whatever a model wrote into it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from practicum.observe.html import headline, render_report, write_report
from practicum.observe.runlog import LoggedFinding
from practicum.observe.summary import RunSummary, summarise
from practicum.types import Failure, Message, Outcome
from practicum.verdicts import Finding, VerifierId, Violation

BuildRun = Callable[..., Path]

HOSTILE = (
    "<script>document.title='owned'</script><svg onload=alert(1)><img src=//x onerror=alert(1)>"
    "</pre></textarea></style></title>--><a href='javascript:alert(1)'>x</a>![x](http://x/p.png) "
    "{{ 7*7 }} {% raw %} &lt;b&gt; ' \" \x1b[31m \u202egnp.exe \u200b \ud800"
)
WORDS = re.compile(r"\S+")
TAGS = set(
    WORDS.findall("""
        html head meta title style body a header p span h1 nav main section h2 div table caption
        thead tr th tbody td tfoot dl dt dd small figure svg line text polygon polyline circle rect
        ul li h3 h4 b ol pre i code details summary footer
    """)
)
ATTRIBUTES = set(
    WORDS.findall("""
        lang charset http-equiv content name class href id aria-labelledby aria-label aria-hidden
        role scope colspan title viewbox x y x1 x2 y1 y2 cx cy r rx dy width height points
        text-anchor
    """)
)


class Inventory(HTMLParser):
    """Every tag, attribute and piece of text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in ("href", "src")}

    def handle_data(self, data: str) -> None:
        self.text += data


def poison(summary: RunSummary) -> RunSummary:
    """The same run, with hostile text wherever text comes from outside."""
    attempts = []
    for attempt in summary.samples:
        verdict = attempt.verdict and dataclasses.replace(
            attempt.verdict,
            evidence=HOSTILE,
            parts={HOSTILE: 0.5},
            violations=(Violation(HOSTILE, 0.1, HOSTILE),),
            verifier=VerifierId(HOSTILE, HOSTILE, HOSTILE),
        )
        task = dataclasses.replace(
            attempt.task,
            domain=HOSTILE,
            prompt=(Message("text", HOSTILE), Message("user", HOSTILE)),
        )
        trajectory = dataclasses.replace(
            attempt.trajectory,
            id=HOSTILE,
            messages=(*task.prompt, Message("tool", HOSTILE), Message("assistant", HOSTILE)),
            failure=Failure(HOSTILE, HOSTILE, HOSTILE),
        )
        attempts.append(
            dataclasses.replace(attempt, task=task, trajectory=trajectory, verdict=verdict)
        )
    return dataclasses.replace(
        summary,
        name=HOSTILE,
        model=HOSTILE,
        samples=tuple(attempts),
        vocabulary=[HOSTILE] * 5000,
        comparisons=tuple(
            dataclasses.replace(c, domain=c.domain and HOSTILE) for c in summary.comparisons
        ),
        domain_rewards={HOSTILE: summary.reward},
        mix=tuple(dataclasses.replace(share, domain=HOSTILE) for share in summary.mix),
        findings=(LoggedFinding(0, Finding(HOSTILE, HOSTILE, HOSTILE, HOSTILE)),),
        failures=tuple(
            dataclasses.replace(f, kind=HOSTILE, domains=(HOSTILE,)) for f in summary.failures
        ),
        speed=dataclasses.replace(summary.speed, phases={HOSTILE: 1.0}),
        verifiers=((HOSTILE, VerifierId(HOSTILE, HOSTILE, HOSTILE)),),
        provenance=((HOSTILE, HOSTILE),),
    )


@pytest.fixture(scope="module")
def summary(finished_run: Path) -> RunSummary:
    return summarise(finished_run)


def test_the_report_says_what_the_run_did(summary: RunSummary) -> None:
    text = Inventory(render_report(summary)).text
    for phrase in (
        "SmolLM2-135M-Instruct (from Q4_1)", "Dr. GRPO on 4 domains", "9 of 9 steps", "on-policy",
        "Accuracy rose from", "max of three", "All domains", "20 attempts", "tokens/s",
        "lost to the machinery", "Metrics digest", "learning_rate", "expected '",
    ):  # fmt: skip
        assert phrase in text, phrase
    assert text.count("sample ") >= 20


def test_it_is_one_file_that_asks_for_nothing(summary: RunSummary) -> None:
    page = Inventory(render_report(summary))
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert {link[0] for link in page.links} == {"#"}
    assert "url(" not in render_report(summary)
    assert "@import" not in render_report(summary)


def test_the_policy_admits_the_style_sheet_and_nothing_else(summary: RunSummary) -> None:
    page = render_report(summary)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert style is not None
    assert policy is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert policy.group(1).replace("&#39;", "'") == (
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


def test_hostile_text_is_shown_and_does_nothing(summary: RunSummary) -> None:
    poisoned = render_report(poison(summary))
    page = Inventory(poisoned)
    assert page.tags <= TAGS
    assert page.attributes <= ATTRIBUTES
    assert {link[0] for link in page.links} == {"#"}
    for character in "\x1b\u202e\u200b\ud800":
        assert character not in poisoned
    assert "<script>document.title='owned'</script>" in page.text
    assert "⟨U+202E⟩gnp.exe" in page.text
    assert "{{ 7*7 }}" in page.text
    poisoned.encode()


def test_a_browser_runs_nothing_of_it(summary: RunSummary, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    path = tmp_path / "report.html"
    path.write_text(render_report(poison(summary)))
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    quiet = "--disable-background-networking --disable-component-update"
    found = subprocess.run(
        [chromium, *flags.split(), *quiet.split(), f"--user-data-dir={tmp_path / 'profile'}",
         "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", found.stdout, re.DOTALL)
    assert title is not None
    assert title.group(1) != "owned"
    assert "<script" not in found.stdout
    assert "<img" not in found.stdout


def test_every_table_has_headings_and_every_picture_words(summary: RunSummary) -> None:
    page = render_report(summary)
    assert page.count("<table") == page.count("<caption")
    assert "<th>" not in page
    for picture in re.findall(r"<svg[^>]*>", page):
        assert "aria-label=" in picture or 'aria-hidden="true"' in picture
    assert re.findall(r"<h(\d)", page)[0] == "1"


def test_a_stopped_run_and_an_empty_one_have_a_report_too(
    tmp_path: Path, build_run: BuildRun
) -> None:
    stopped = build_run(tmp_path, stop_after=1, groups_per_step=4, group_size=4, tasks_per_domain=8)
    assert "makes no claim about progress" in write_report(stopped).read_text()
    empty = build_run(tmp_path, stop_after=0, tasks_per_domain=0, name="empty")
    page = write_report(empty).read_text()
    assert "No step has been trained yet" in page
    assert "No attempt has been trained on yet" in page


def test_the_headline_claims_no_more_than_the_interval(summary: RunSummary) -> None:
    overall = summary.comparisons[0]

    def claim(low: float, high: float) -> str:
        change = dataclasses.replace(overall.strict, low=low, high=high)
        comparisons = (dataclasses.replace(overall, strict=change),)
        return headline(dataclasses.replace(summary, comparisons=comparisons))

    assert claim(0.01, 0.3).startswith("Accuracy rose")
    assert claim(-0.3, -0.01).startswith("Accuracy fell")
    assert "no change that this evaluation can tell from chance" in claim(-0.01, 0.3)


def test_unscored_tasks_are_told_beside_the_headline(summary: RunSummary) -> None:
    overall = summary.comparisons[0]
    after = dataclasses.replace(overall.after, num_unscored=3)
    comparisons = (
        dataclasses.replace(overall, after=after, bounds=(0.1, 0.2)),
        *summary.comparisons[1:],
    )
    text = Inventory(render_report(dataclasses.replace(summary, comparisons=comparisons))).text
    assert re.search(r"0 tasks before and 3\s+after could not be scored", text)
    assert re.search(r"lies between\s+\+10\.0 and \+20\.0", text)


def test_an_algorithm_without_a_name_of_its_own_shows_as_it_is(summary: RunSummary) -> None:
    train = summary.config.train.model_copy(update={"algorithm": "novel"})
    config = summary.config.model_copy(update={"train": train})
    text = Inventory(render_report(dataclasses.replace(summary, config=config))).text
    assert "novel on 4 domains" in text


def test_outcomes_all_have_words(summary: RunSummary) -> None:
    outcomes = {str(outcome): 1 for outcome in Outcome}
    text = Inventory(render_report(dataclasses.replace(summary, outcomes=outcomes))).text
    assert "lost to the verifier" in text
