"""Every engine gets the same counts, and nothing of an earlier run."""

import itertools

import pytest

from practicum.bench import rollout_workload as workload
from practicum.policy.model.cache import kept_model
from practicum.policy.model.tiny import write_tiny
from practicum.policy.model.tokens import Tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Tokens:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    return Tokens(folder)


def marks(work: workload.Work) -> set[int]:
    return {ask.first_id for asks in work.rounds for ask in asks}


def test_the_rollout_has_the_counts_that_were_published() -> None:
    folder = kept_model("smollm2-135m")
    if folder is None:
        pytest.skip("needs `practicum data model smollm2-135m`")
    (asks,) = workload.rollout(Tokens(folder), 3).rounds
    assert len(asks) == 64
    assert sum(len(ask.append_ids) for ask in asks) == 4580
    assert sum(ask.max_new_tokens for ask in asks) == 6218


def test_a_run_begins_no_prompt_like_an_earlier_run(tokens: Tokens) -> None:
    seen: set[int] = set()
    for number, work in enumerate(
        [
            workload.rollout(tokens, 0),
            workload.rows(tokens, 256, 1),
            workload.shared(tokens, 2, copied=True),
            workload.turns(tokens, 3, forgetful=True),
            workload.rollout(tokens, 4),
        ]
    ):
        assert not seen & marks(work), f"run {number} shares a first token"
        seen |= marks(work)


def test_further_rows_have_prompts_of_their_own(tokens: Tokens) -> None:
    (asks,) = workload.rows(tokens, 256, 0).rounds
    prompts = {(ask.first_id, ask.append_ids[1:]) for ask in asks}
    assert len(prompts) == 256 // workload.GROUP_SIZE


def test_copied_prompts_differ_in_nothing_but_their_first_token(tokens: Tokens) -> None:
    (shared,) = workload.shared(tokens, 1, copied=False).rounds
    (copied,) = workload.shared(tokens, 1, copied=True).rounds
    assert [ask.append_ids for ask in shared] == [ask.append_ids for ask in copied]
    assert len({ask.first_id for ask in shared}) == 1
    assert len({ask.first_id for ask in copied}) == len(copied)
    assert len(shared[0].append_ids) == workload.SHARED_PROMPT_TOKENS


def test_forgetful_turns_ask_for_the_same_and_share_nothing(tokens: Tokens) -> None:
    turns = workload.turns(tokens, 1, forgetful=False)
    forgetful = workload.turns(tokens, 1, forgetful=True)
    assert turns.num_output_tokens == forgetful.num_output_tokens
    assert len(marks(turns)) == 1
    assert len(marks(forgetful)) == sum(map(len, forgetful.rounds))


def test_a_conversation_is_parked_while_others_generate(tokens: Tokens) -> None:
    rounds = workload.turns(tokens, 1, forgetful=False).rounds
    for before, after in itertools.pairwise(rounds):
        assert not {a.conversation for a in before} & {a.conversation for a in after}
