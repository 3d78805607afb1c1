"""Who runs when, in which pages: rules of the queue, of sharing, and of memory that runs short."""

import random

import pytest

from policy.engine.paper import PaperEngine, prompt, reference, request
from practicum.errors import UsageError
from practicum.policy.engine.request import Request
from practicum.policy.engine.step import Step
from practicum.types import StopReason


def engine(num_pages: int = 64, **limits: int) -> PaperEngine:
    return PaperEngine(**{"num_pages": num_pages, "max_rows": 8, "max_step_tokens": 64, **limits})


def group(size: int, tokens: list[int], max_new_tokens: int = 30) -> list[Request]:
    return [request(tokens, max_new_tokens, seed) for seed in range(size)]


def shape(step: Step | None) -> list[tuple[int, int, int]]:
    """First token, number of tokens, number of logits of every run."""
    assert step is not None
    return [(run.first, run.num_tokens, run.num_logits) for run in step.runs]


# Sharing


def test_samples_of_one_prompt_are_one_row_until_they_disagree() -> None:
    paper = engine()
    paper.add(*group(6, prompt(40)))
    assert shape(paper.step()) == [(0, 40, 1)]
    rows = [sequence.requests for sequence in paper.scheduler.running]
    drawn = [{asked.token_ids[0] for asked in requests} for requests in rows]
    assert all(len(tokens) == 1 for tokens in drawn)
    assert 1 < len(rows) == len(set.union(*drawn)) < 6
    paper.run()
    paper.check_end()


def test_branches_copy_the_last_page_only_and_one_of_them_keeps_it() -> None:
    paper = engine()
    paper.add(*group(6, prompt(40)))
    paper.step()
    num_branches = len(paper.scheduler.running)
    step = paper.step()
    assert step is not None
    assert len(step.copies) == num_branches - 1 > 0
    assert len({run.sequence.pages[0] for run in step.runs}) == 1
    assert len({run.sequence.pages[1] for run in step.runs}) == num_branches


def test_branches_at_the_border_of_a_page_copy_nothing() -> None:
    paper = engine()
    paper.add(*group(12, prompt(64)))
    paper.step()
    step = paper.step()
    assert step is not None
    assert len(step.runs) > 1
    assert not step.copies


def test_a_request_joins_one_that_is_still_reading_the_same_prompt() -> None:
    paper = engine()
    paper.add(request(prompt(100), seed=1))
    paper.step()
    late = request(prompt(100), seed=2)
    paper.add(late)
    assert shape(paper.step()) == [(64, 36, 1)]
    assert late.reused_tokens == 64
    assert len(late.token_ids) == 1
    paper.run()
    paper.check_end()


def test_nobody_joins_across_a_change_of_the_weights() -> None:
    paper = engine()
    paper.add(request(prompt(100), seed=1))
    paper.step()
    paper.publish()
    paper.add(request(prompt(100), seed=2))
    assert shape(paper.step()) == [(64, 36, 1), (0, 28, 0)]
    paper.run()
    paper.check_end()


def test_a_prompt_is_shared_while_its_first_reader_still_runs() -> None:
    paper = engine()
    paper.add(request(prompt(64, 1), 50, seed=1))
    paper.step()
    paper.step()
    paper.add(late := request(prompt(64, 2), seed=2))
    assert shape(paper.step())[1:] == [(64, 1, 1)]
    assert late.reused_tokens == 64
    assert not paper.scheduler.counters.copied_pages
    paper.run()
    paper.check_end()


def test_so_is_its_last_page_though_it_is_still_being_filled() -> None:
    paper = engine()
    paper.add(request(prompt(70, 1, 1), 20, seed=1))
    for _ in range(3):
        paper.step()
    paper.add(request(prompt(70, 2, 2), 20, seed=2), request(prompt(70, 1, 1), 20, seed=3))
    step = paper.step()
    assert step is not None
    assert shape(step)[1:] == [(70, 2, 1), (71, 1, 1)]
    assert len(step.copies) == 2
    paper.run()
    paper.check_end()


def test_prompts_that_begin_alike_wait_a_step_to_read_the_beginning_once() -> None:
    paper = engine(max_step_tokens=400)
    paper.add(*(request(prompt(100, own), 5, seed=own) for own in range(3)))
    assert shape(paper.step()) == [(0, 101, 1)]
    assert shape(paper.step())[1:] == [(100, 1, 1), (100, 1, 1)]
    paper.run()
    paper.check_end()


def test_nobody_waits_to_share_a_few_tokens() -> None:
    paper = engine(max_step_tokens=400)
    paper.add(*(request(prompt(15, own), 5, seed=own) for own in range(3)))
    assert shape(paper.step()) == [(0, 16, 1)] * 3
    paper.run()
    paper.check_end()


def test_the_next_turn_computes_only_what_is_new() -> None:
    paper = engine()
    paper.add(first := request(prompt(50), 30))
    paper.run()
    turn = [*prompt(50), *first.token_ids, 2, 2, 2]
    paper.add(second := request(turn, 5))
    step = paper.step()
    known = len(turn) - 4  # the last sampled token was never computed
    assert shape(step) == [(known, 4, 1)]
    assert second.reused_tokens == known
    paper.run()
    paper.check_end()


def test_at_least_the_last_token_of_a_known_prompt_is_computed() -> None:
    paper = engine()
    for length in (32, 33, 50, 64):
        for _ in range(2):
            paper.add(request(prompt(length), 3))
            step = paper.step()
            paper.run()
        assert shape(step) == [(length - 1, 1, 1)]
    paper.check_end()


def test_different_salts_share_nothing() -> None:
    paper = engine(max_step_tokens=128)
    paper.add(*(request(prompt(40), 5, salt=salt) for salt in ("bf16", "int8")))
    assert shape(paper.step()) == [(0, 40, 1), (0, 40, 1)]
    paper.add(late := request(prompt(40), 5, salt="int4"))
    paper.step()
    assert late.reused_tokens == 0
    paper.run()
    paper.check_end()


# The queue


def test_long_prompts_are_read_in_chunks_beside_completions() -> None:
    paper = engine(max_step_tokens=20)
    paper.add(request([2, *prompt(10)], 30, seed=3))
    paper.step()
    paper.add(request([1, *prompt(60)], 5))
    assert shape(paper.step()) == [(11, 1, 1), (0, 19, 0)]
    assert shape(paper.step()) == [(12, 1, 1), (19, 19, 0)]
    assert shape(paper.step()) == [(13, 1, 1), (38, 19, 0)]
    assert shape(paper.step()) == [(14, 1, 1), (57, 4, 1)]
    paper.run()
    paper.check_end()


def test_a_long_request_is_not_overtaken() -> None:
    paper = engine(num_pages=8)
    running = [request(prompt(40, i), 60, seed=i) for i in (0, 1)]
    long, short = request(prompt(200), 40), request(prompt(3), 3)
    paper.add(*running)
    paper.step()
    paper.add(long, short)
    while not long.token_ids:
        assert not short.token_ids
        assert paper.step() is not None
    paper.run()
    paper.check_end()


def test_samples_still_to_part_count_as_rows() -> None:
    paper = engine(max_rows=3)
    paper.add(*group(4, prompt(20)), request([1] * 5, 3))
    assert shape(paper.step()) == [(0, 20, 1)]
    assert len(paper.scheduler.waiting) == 1
    paper.run()
    paper.check_end()


def test_freed_rows_are_filled_in_the_next_step() -> None:
    paper = engine(max_rows=3)
    rng = random.Random(0)
    asked = [request(prompt(9, i), rng.randint(1, 20), seed=i) for i in range(12)]
    paper.add(*asked)
    for step in paper.run()[1:-20]:
        assert len(step.runs) == 3
    paper.check_end()


def test_a_step_has_no_more_rows_and_tokens_than_allowed() -> None:
    paper = engine(max_rows=4, max_step_tokens=24)
    paper.add(*group(9, prompt(30), 40), *group(9, prompt(31, 0), 40))
    for step in paper.run():
        assert len(step.runs) <= 4
        assert step.num_tokens <= 24
        assert step.num_logits <= 4
    paper.check_end()


# Memory that runs short


def test_the_latest_arrival_makes_room_and_loses_nothing() -> None:
    paper = engine(num_pages=6)
    asked = [request(prompt(20, i), 100, seed=100 + i) for i in range(3)]
    paper.add(*asked)
    ends: list[Request] = []
    while paper.step() is not None:
        ends += [one for one in asked if one.stop_reason is not None and one not in ends]
        waiting = [sequence.requests[0] for sequence in paper.scheduler.waiting]
        assert waiting == asked[len(asked) - len(waiting) :]
    assert ends == asked
    assert paper.scheduler.counters.preemptions >= 2
    paper.check_end()


def test_the_first_branch_goes_on_when_there_is_no_page_for_a_copy() -> None:
    paper = engine(num_pages=2)
    paper.add(*group(3, prompt(40), 24))  # each alone needs both pages
    paper.run()
    assert not paper.scheduler.counters.copied_pages
    assert len({tuple(one.token_ids) for one in paper.requests}) > 1
    paper.check_end()


def test_a_newcomer_leaves_a_page_for_every_request_under_way() -> None:
    paper = engine(num_pages=8)
    paper.add(*group(3, prompt(40), 50))
    paper.step()
    paper.add(request([0] * 65, 3))  # 3 pages, and 4 more than the 2 to 4 in use are not there
    paper.step()
    assert paper.scheduler.waiting
    paper.run()
    assert not paper.scheduler.counters.preemptions
    paper.check_end()


@pytest.mark.parametrize("num_slots", [0, 3])
def test_preemption_changes_nothing_even_when_the_weights_change_meanwhile(num_slots: int) -> None:
    paper = engine(num_pages=5, num_slots=num_slots)
    asked = group(8, prompt(20), 110)
    paper.add(*asked)
    count = 0
    while paper.step() is not None:
        paper.scheduler.check()
        count += 1
        if count % 7 == 0:
            paper.publish()
    assert paper.scheduler.counters.preemptions >= 8
    assert any(len(set(one.versions)) > 3 for one in asked)
    paper.check_end()


def test_evicted_prompts_come_back_from_their_slots() -> None:
    paper = engine(num_pages=4, num_slots=8)
    for own in (0, 1, 2):
        paper.add(request([own] * 90, 5))
        paper.run()
    paper.add(again := request([0] * 90, 5))
    step = paper.step()
    assert step is not None
    assert len(step.swap_in) == 3
    assert again.reused_tokens == 89
    assert shape(step) == [(89, 1, 1)]
    paper.run()
    paper.check_end()


def test_swapping_less_gives_slots_back_at_once() -> None:
    paper = engine(num_pages=4, num_slots=8)
    for own in (0, 1, 2):
        paper.add(request([own] * 90, 5))
        paper.run()
    assert paper.scheduler.tables.slots.num_used > 2
    paper.scheduler.resize_swap(2)
    assert paper.scheduler.tables.slots.num_used == 2
    paper.check_end()


def test_of_what_ended_the_end_is_evicted_first() -> None:
    paper = engine(num_pages=4)
    paper.add(request([0] * 90, 5))
    paper.run()
    paper.add(request([1] * 60, 5))
    paper.run()
    paper.add(again := request([0] * 90, 5))
    paper.run()
    assert again.reused_tokens == 64
    paper.check_end()


def test_what_was_copied_from_counts_as_used() -> None:
    paper = engine(num_pages=3)
    for own, most_new in [(0, 2), (1, 2), (0, 2), (2, 30)]:
        paper.add(request([own] * 20, most_new))
        paper.run()
    paper.add(again := request([0] * 20, 2))
    paper.run()
    assert again.reused_tokens == 19
    paper.check_end()


def test_without_slots_evicted_prompts_are_computed_again() -> None:
    paper = engine(num_pages=4)
    for own in (0, 1, 2, 0):
        paper.add(asked := request([own] * 90, 5))
        paper.run()
        assert asked.reused_tokens == 0
    paper.check_end()


def test_a_request_too_large_for_all_the_memory_is_refused_and_disturbs_nobody() -> None:
    paper = engine(num_pages=3)
    paper.add(request(prompt(60), 37))  # the last token needs no place: exactly 96
    with pytest.raises(UsageError, match=r"60 tokens and 38 new ones need 4 pages.*has 3"):
        paper.scheduler.add(request(prompt(60), 38))
    paper.run()
    paper.check_end()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"num_pages": 0}, "at least 1 page"),
        ({"max_rows": 0}, "at least 1 row"),
        ({"num_slots": -1}, "no less than 0 slots"),
        ({"max_rows": 64, "max_step_tokens": 64}, "must be above max_rows"),
    ],
)
def test_limits_that_cannot_work_are_refused(limits: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        engine(**limits)


# Ending early


def test_aborting_frees_everything_at_once() -> None:
    paper = engine(num_pages=8)
    asked = [request([own] * 60, 60, seed=own) for own in range(5)]
    paper.add(*asked)
    for _ in range(10):
        paper.step()
    assert paper.scheduler.waiting
    for one in asked:
        paper.scheduler.abort(one)
        paper.scheduler.check()
        assert one.stop_reason is StopReason.ABORTED
    assert paper.scheduler.tables.pages.num_available == 8
    paper.scheduler.abort(asked[0])  # twice does no harm
    paper.check_end()


def test_the_others_of_a_sequence_go_on_without_the_aborted_one() -> None:
    paper = engine()
    asked = group(5, prompt(100))
    paper.add(*asked)
    paper.step()
    paper.scheduler.abort(asked[0])
    paper.run()
    assert all(one.token_ids for one in asked[1:])
    paper.check_end()


def test_aborting_while_the_step_runs_leaves_the_others_alone() -> None:
    paper = engine()
    asked = [request(prompt(20, i), 10, seed=i) for i in range(2)]
    paper.add(*asked)
    step = paper.scheduler.schedule()
    assert step is not None
    paper.scheduler.abort(asked[0])
    paper.execute(step)
    paper.run()
    assert not asked[0].token_ids
    paper.check_end()


# Speculation


def perfect_drafts(paper: PaperEngine, count: int) -> None:
    """What the model is going to say, by asking the reference."""
    for sequence in paper.scheduler.running:
        asked = sequence.requests[0]
        if len(sequence.requests) == 1 and asked in paper.versions:
            alone = reference(asked, [paper.version] * (len(sequence.tokens) + count))
            sequence.drafts = tuple(alone.token_ids[len(asked.token_ids) :][:count])


def test_accepted_drafts_save_steps_and_change_nothing() -> None:
    plain, quick = engine(), engine()
    for paper in (plain, quick):
        paper.add(request(prompt(20), 40, seed=5), request(prompt(33, 0), 40, seed=6))
    num_plain, num_quick = len(plain.run()), 0
    while quick.step() is not None:
        num_quick += 1
        perfect_drafts(quick, 3)
    assert [one.token_ids for one in plain.requests] == [one.token_ids for one in quick.requests]
    assert num_quick <= num_plain / 2
    quick.check_end()


def test_drafts_never_go_beyond_the_last_token_or_push_anybody_out() -> None:
    paper = engine(num_pages=3, max_rows=2, max_step_tokens=60)
    paper.add(request(prompt(30), 35, seed=9))
    num_left = 35
    while (step := paper.step()) is not None:
        assert step.num_logits <= num_left
        num_left = paper.requests[0].num_left
        for sequence in paper.scheduler.running:
            sequence.drafts = (0,) * 30
    assert not paper.scheduler.counters.preemptions
    paper.check_end()


def test_nobody_is_preempted_for_a_guess() -> None:
    paper = engine(num_pages=5, max_step_tokens=128)
    paper.add(request([1] * 60, 60, seed=1), request([2] * 30, 60, seed=2))
    while paper.scheduler.tables.pages.num_available:
        paper.step()
    paper.scheduler.running[0].drafts = (0,) * 40
    assert [num_tokens for _, num_tokens, _ in shape(paper.step())] == [1, 1]
    assert not paper.scheduler.counters.preemptions


def test_drafts_leave_half_of_what_completions_do_not_need_to_prompts() -> None:
    paper = engine(max_step_tokens=33, max_rows=8)
    paper.add(request([1, *prompt(4)], 100, seed=3))
    paper.step()
    paper.add(request([2, *prompt(90)], 5))
    paper.scheduler.running[0].drafts = (0,) * 50
    assert shape(paper.step()) == [(5, 17, 17), (0, 16, 0)]
    paper.run()
    paper.check_end()
