"""A contender is a process of its own that answers, says why not, or ends with a clear error."""

import io
import json
import sys
from pathlib import Path

import pytest

from practicum.bench.engine_contenders import Contender, Running, check_peers, line_up
from practicum.bench.peers import engine_contender
from practicum.bench.peers.engine_contender import Answer
from practicum.errors import InfraError, UsageError
from practicum.policy.model.products import multiplies_half
from practicum.policy.model.tiny import write_tiny

ASK = {"conversation": 0, "append_ids": [65, 66], "max_new_tokens": 3, "first_id": 67, "seed": 0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return folder


def pick(name: str, folder: Path, peers: tuple[str, ...] = ()) -> Contender:
    return next(c for c in line_up(folder, peers, 1, folder) if c.name == name)


def script(text: str) -> Contender:
    return Contender("script", (sys.executable, "-c", text), {})


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(UsageError, match="Did you mean 'vllm'"):
        check_peers(["vlm"])


def test_a_missing_environment_says_how_to_build_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="make peers"):
        check_peers(["openvino"])


def test_a_contender_that_dies_shows_the_end_of_its_log() -> None:
    with (
        pytest.raises(InfraError, match="out of luck"),
        Running(script("raise SystemExit('out of luck')")) as running,
    ):
        running.ask({"do": "run", "rounds": []})


def test_what_a_library_prints_is_no_answer(tmp_path: Path) -> None:
    folder = str(Path(engine_contender.__file__).parent)
    program = f"""
import sys; sys.path.insert(0, {folder!r})
from engine_contender import claim_stdout, say_absent
answers = claim_stdout()
print("a banner")
say_absent(answers, "because")
"""
    with Running(script(program)) as running:
        assert running.ask({"do": "run", "rounds": []}) == {"absent": "because"}


def test_a_conversation_goes_on_from_what_was_sampled() -> None:
    seen: list[list[int]] = []

    def generate(prompts: list[list[int]], budgets: list[int], seeds: list[int]) -> list[Answer]:
        seen.extend(prompts)
        return [Answer([9] * budget, 1) for budget in budgets]

    result = engine_contender.player(generate)([[ASK], [ASK | {"first_id": 68}]])
    assert seen == [[67, 66], [68, 66, 9, 9, 9, 65, 66]]
    assert result == {"num_prompt": 9, "num_output": 6, "num_reused": 2}


def test_a_completion_of_another_length_does_not_count() -> None:
    play = engine_contender.player(lambda prompts, budgets, seeds: [Answer([1])])
    with pytest.raises(AssertionError, match="1 tokens instead of 3"):
        play([[ASK]])


def test_an_update_is_timed_with_the_token_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[int] = []
    play = engine_contender.player(lambda prompts, budgets, seeds: [Answer([1])])
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"do": "update"}\n'))
    answers = io.StringIO()
    engine_contender.obey(answers, play, lambda: updated.append(1))
    measured = json.loads(answers.getvalue())
    assert updated
    assert set(measured) == {"update_s", "token_cpu_before_s", "token_cpu_after_s"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["practicum", "transformers", "roof bf16", "roof w8a8"])
def test_a_contender_gives_the_tokens_it_was_asked_for(name: str, tiny: Path) -> None:
    if name == "roof w8a8" and not multiplies_half():
        pytest.skip("oneDNN has no fast products of int8 here")
    with Running(pick(name, tiny, ("transformers",))) as running:
        answer = running.ask({"do": "run", "rounds": [[ASK, ASK | {"conversation": 1}]]})
    assert answer["num_output"] == 6
    assert answer["cpu_s"] > 0
    assert answer["peak_mb"] > 50
