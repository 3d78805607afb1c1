"""Tables and options of `practicum bench engine`."""

import pytest

from practicum.bench.engine import PARTS, Figure, Measured, bench_engine
from practicum.bench.engine_contenders import OURS, ROOFS
from practicum.bench.engine_report import show
from practicum.bench.rollout_workload import ROWS
from practicum.errors import UsageError

WORKS = (
    "rollout",
    *(f"{rows} rows" for rows in ROWS),
    "shared prompt",
    "copied prompt",
    "turns",
    "turns without reuse",
)


def measured(name: str, speed: float) -> Measured:
    figures = {work: Figure(work, speed, speed / 2, speed, 900.0, 0.5) for work in WORKS}
    return Measured(name, 1, start_s=3.0, start_cpu_s=2.0, update_s=0.001, figures=figures)


def test_every_part_has_a_table_with_ratios_to_ours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    ours = measured(next(iter(OURS)), 400)
    ours.kl = {"kl": 5e-4, "kl_error": 1e-5, "mean_difference": 0.02}
    absent = Measured("practicum w8a8", 1, absent="not there yet")
    peer = measured("vllm", 100)
    peer.note = "a remark"
    roof = measured(next(iter(ROOFS)), 500)
    show([ours, absent, peer, roof], [*PARTS, "frontier"])
    text = capsys.readouterr().out
    assert "0.25" in text
    assert "80%" in text
    assert "5.0e-04" in text
    assert "practicum w8a8: not there yet" in text
    assert "vllm: a remark" in text


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"peers": "vllm,llama"}, "no peer 'llama'"),
        ({"threads": "1,none"}, "not 'none'"),
        ({"threads": "0"}, "numbers from 1"),
        ({"only": "rolout"}, "Did you mean 'rollout'"),
        ({"repetitions": 0}, "at least 1"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    changed: dict[str, str | int], message: str
) -> None:
    options = {"peers": "", "threads": "1", "only": "", "repetitions": 1} | changed
    with pytest.raises(UsageError, match=message):
        bench_engine(**options, as_json=False)  # type: ignore[arg-type]
