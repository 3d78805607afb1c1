"""The command as a person meets it: bad input gets one clear message and exit code 2."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.cli import main


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    with pytest.raises(SystemExit) as stopped:
        main(words)
    captured = capsys.readouterr()
    code = stopped.value.code
    return (code if isinstance(code, int) else 0), captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trian",), "train"),
        (("train",), "recipe"),
        (("train", "demmo"), "Did you mean 'demo'"),
        (("train", "none.toml"), "No such file"),
        (("train", "tiny", "--train.stepps", "3"), "Did you mean 'steps'"),
        (("train", "tiny", "--train.steps"), "needs a value"),
        (("train", "tiny", "--sed", "3"), "--sed"),
        *((("serve", "tiny", "--cache-gb", gb), "Must be <= 1048576") for gb in ("nan", "inf")),
        (("serve", "tiny", "--cache-gb", "1e300"), "Must be <= 1048576"),
        (("serve", "tiny", "--cache-gb", "0"), "Must be > 0"),
        (("serve", "tiny", "--rows", "4097"), "Must be <= 4096"),
        (("train", "tiny", "--model", "smollm2-135n"), "Did you mean 'smollm2-135m'"),
        (("train", "tiny", "--model", "/no/such/model"), "no model"),
        (("train", "tiny", "--domains.shares", "{ additon = 1 }"), "Did you mean 'addition'"),
        (("train", "tiny", "--domains.levels", "[0.1, 0.2]"), "no train task between"),
        (("train", "tiny", "--rollout.temperature", "0"), "teach nothing"),
        (("train", "tiny", "--rollout.group_size", "1"), "at least 2"),
        (("train", "tiny", "--name", "../escape"), "cannot name a run"),
        (("resume", "no-such-run"), "is no run"),
        (("resume", "no-such-run", "--train.steps", "9"), "this command takes none"),
        (("sft", "demo", "--model", "tiny"), "no supervised stage"),
        (("view", "no-such-run"), "is no run"),
        (("report", "no-such-run"), "is no run"),
        (("check", "additon"), "Did you mean 'addition'"),
        (("data", "model", "smollm"), "smollm2-135m"),
        (("bench", "speed"), "there is: update"),
        (("bench", "update", "--peer", "tlr"), "Did you mean 'trl'"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message_with_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
):
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *words)
    assert code == 2, err
    assert message in " ".join(err.split())
    assert "Traceback" not in err
    assert not list(tmp_path.glob("runs/*")), "a refused run leaves nothing behind"


def test_a_run_of_another_format_is_refused_and_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    (tmp_path / "manifest.json").write_text(json.dumps({"format": 99}))
    code, _, err = call(capsys, "resume", str(tmp_path))
    assert code == 2
    assert "format 99" in err
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_prompt_that_does_not_fit_the_context_names_the_domain(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from practicum.policy.model.tiny import tiny_config, write_tiny

    (tmp_path / "short").mkdir()
    write_tiny(tmp_path / "short", config={**tiny_config(), "max_position_embeddings": 64})
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "train", "tiny", "--model", "short")
    assert code == 2
    assert "holds only 64" in err


def test_untrusted_code_without_isolation_is_refused_unless_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from practicum import build
    from practicum.errors import UsageError

    def refuse(*, unsafe: bool) -> None:
        assert not unsafe
        raise UsageError("no user namespaces here; --unsafe-sandbox runs it without isolation")

    monkeypatch.setattr(build, "open_pool", refuse)
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "train", "tiny", "--domains.shares", "{ tiny_function = 1 }")
    assert code == 2
    assert "--unsafe-sandbox" in err


def test_domains_and_doctor_speak_json(capsys: pytest.CaptureFixture[str]):
    code, out, _ = call(capsys, "domains", "--json")
    assert code == 0
    assert {"addition", "tiny_function"} <= {row["name"] for row in json.loads(out)}
    _, out, _ = call(capsys, "doctor", "--json")
    assert {"system", "memory", "isolation"} <= {check["name"] for check in json.loads(out)}


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path):
    command = f"{sys.executable} -m practicum domains --json | head -c 10"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in ran.stderr
