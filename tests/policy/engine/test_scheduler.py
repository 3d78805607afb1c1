"""Who runs when, in which pages: rules of the queue, of sharing, and of memory that runs short."""

import random
from collections.abc import Callable

import pytest

from policy.engine.paper import PaperEngine, prompt, reference, request
from practicum.errors import UsageError
from practicum.policy.engine.request import Request
from practicum.policy.engine.step import Step
from practicum.sampling import Sampling
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
        if asked in paper.versions:
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


# No room outside


def crowd(disk: int | None, num_pages: int, *asked: Request) -> PaperEngine:
    paper = PaperEngine(disk, num_pages=num_pages, max_rows=8, max_step_tokens=400)
    paper.add(*asked)
    return paper


def endless(tokens: list[int], max_new_tokens: int, seed: int) -> Request:
    """It samples as many as it may."""
    return Request(tuple(tokens), Sampling(max_new_tokens, seed=seed, ignore_eos=True))


def step_until(paper: PaperEngine, happened: Callable[[], object]) -> None:
    while not happened():
        assert paper.step() is not None, "it did not happen"


def test_who_cannot_be_moved_stays_until_another_ends() -> None:
    paper = crowd(0, 6, first := endless([1] * 60, 40, seed=2))
    paper.step()
    paper.add(second := endless([2] * 50, 46, seed=3))
    step_until(paper, lambda: len(first.token_ids) == 37)
    assert len(second.token_ids) < 40
    while second.stop_reason is None:
        paper.step()
        assert len(first.token_ids) == 37, "there is no page for it"
    paper.run()
    assert not paper.scheduler.counters.restarts
    assert not paper.lost
    paper.check_end()


@pytest.mark.parametrize(("num_requests", "num_pages"), [(2, 6), (3, 9)])
def test_when_nobody_can_go_on_the_latest_is_computed_again(
    num_requests: int, num_pages: int
) -> None:
    asked = [endless([own] * 40, 80, seed=own) for own in range(num_requests)]
    paper = crowd(0, num_pages, *asked)
    step_until(paper, lambda: paper.scheduler.counters.restarts)
    running = [asked.index(sequence.requests[0]) for sequence in paper.scheduler.running]
    assert running == list(range(len(running)))
    paper.run()
    assert not paper.lost
    paper.check_end()


def test_what_was_found_at_first_stays_told_when_it_is_computed_again() -> None:
    paper = crowd(0, 5, endless(prompt(40), 80, seed=1))
    paper.step()
    paper.add(late := endless(prompt(40, 1, 1), 70, seed=5))
    step_until(paper, lambda: paper.scheduler.counters.restarts)
    paper.run()
    assert late.reused_tokens == 40
    assert paper.scheduler.counters.sequences == 2
    paper.check_end()


def old_and_new() -> tuple[PaperEngine, list[Request]]:
    """Three that outgrow the pool together, the last of them of newer weights."""
    asked = [endless([own] * 40, 80, seed=40 + own) for own in range(3)]
    paper = crowd(0, 9, *asked[:2])
    paper.step()
    paper.publish()
    paper.add(asked[2])
    paper.step()
    assert len(paper.scheduler.running) == 3
    return paper, asked


def test_what_is_of_earlier_weights_stays_while_something_newer_can_give_way() -> None:
    paper, _ = old_and_new()
    paper.run()
    assert paper.scheduler.counters.restarts
    assert not paper.lost
    paper.check_end()


def test_if_all_is_of_earlier_weights_the_latest_alone_is_lost() -> None:
    paper, asked = old_and_new()
    paper.publish()
    paper.run()
    assert not paper.scheduler.counters.restarts
    assert paper.lost == [asked[2]]
    assert paper.scheduler.counters.lost_requests == 1
    paper.check_end()


def test_new_weights_lose_what_has_given_its_keys_up() -> None:
    paper, asked = old_and_new()
    step_until(paper, lambda: paper.scheduler.counters.restarts)
    assert asked[2].token_ids
    paper.publish()
    paper.run()
    assert paper.lost == [asked[2]]
    paper.check_end()


def test_new_weights_lose_nothing_that_has_not_sampled() -> None:
    paper = PaperEngine(0, num_pages=8, max_rows=2, max_step_tokens=40)
    paper.add(request([1] * 60, 30, seed=2))
    step_until(paper, lambda: paper.requests[0].token_ids)
    paper.add(second := request([2] * 64, 30, seed=3))
    paper.step()
    (sequence,) = (s for s in paper.scheduler.running if second in s.requests)
    assert 0 < sequence.num_computed < 64
    paper.scheduler._give_way(paper.scheduler.running)  # pyright: ignore[reportPrivateUsage]
    paper.publish()
    paper.run()
    assert not paper.lost
    assert set(second.versions) == {1}
    paper.check_end()


def test_who_is_alone_takes_its_last_page_where_there_is_none_for_a_copy() -> None:
    """Forked within a page, parked with it, and then all by itself in a pool of just its size."""
    paper = crowd(0, 3, *group(2, prompt(66), 31))
    step_until(paper, lambda: len(paper.scheduler.running) == 2)
    paper.publish()  # now nothing can be computed again
    step_until(paper, lambda: paper.scheduler.waiting)
    (parked,), (running,) = paper.scheduler.waiting, paper.scheduler.running
    (asked,) = parked.requests
    assert parked.is_parked
    paper.scheduler.abort(running.requests[0])
    paper.run()
    assert asked.stop_reason is not StopReason.ABORTED
    paper.check_end()


def test_what_is_merely_kept_leaves_the_disk_to_what_is_under_way() -> None:
    paper = PaperEngine(6, num_pages=4, num_slots=8, max_rows=8, max_step_tokens=400)
    for own in range(3):
        paper.add(request([own, 0, 1] * 30, 5))
        paper.run()
        paper.add(request([own, 1, 2] * 30, 5))
        paper.run()
    assert paper.scheduler.tables.slots.num_used == 6
    paper.add(*(endless([0] * 20, 100, seed=seed) for seed in range(2)))
    step_until(paper, lambda: paper.scheduler.counters.preemptions)
    paper.run()
    assert paper.scheduler.counters.swapped_in_pages
    assert not paper.scheduler.counters.restarts
    paper.check_end()


def test_a_full_disk_is_tried_again() -> None:
    paper = crowd(0, 9, *(endless([own] * 40, 80, seed=40 + own) for own in range(3)))
    step_until(paper, lambda: paper.scheduler.counters.restarts)
    assert not paper.scheduler.counters.swapped_out_pages
    paper.disk = None
    paper.add(*(request([own, 1] * 20, 80, seed=50 + own) for own in range(5)))
    paper.run()
    assert paper.scheduler.counters.swapped_in_pages
    paper.check_end()


# Guesses for several that agree so far


def test_a_guess_serves_all_who_draw_it_and_the_others_part_there() -> None:
    paper = engine(max_rows=64, max_step_tokens=200)
    paper.add(*(asked := group(48, prompt(40))))
    paper.step()
    largest = max(paper.scheduler.running, key=lambda sequence: len(sequence.requests))
    together = largest.requests[:]
    perfect_drafts(paper, 2)
    paper.step()
    branches = [s for s in paper.scheduler.running if s.requests[0] in together]
    assert sum(len(sequence.requests) for sequence in branches) >= len(together) - 1
    assert {len(sequence.tokens) - 41 for sequence in branches} == {1, 2, 3}
    assert max(branches, key=lambda sequence: len(sequence.tokens)).num_computed == 43
    paper.run()
    assert all(one.stop_reason is not None for one in asked)
    paper.check_end()


def test_who_ends_within_a_guess_leaves_the_others_to_go_on() -> None:
    paper = engine()
    short, long = request(prompt(40), 3, seed=1), request(prompt(40), 30, seed=1)
    paper.add(short, long)
    while (step := paper.step()) is not None:
        assert step.num_logits <= max(1, len(step.runs) * 4)
        perfect_drafts(paper, 3)
    assert short.token_ids == long.token_ids[:3]
    assert len(long.token_ids) == 30
    paper.check_end()


def test_one_that_is_behind_does_not_write_over_what_the_tree_keeps_of_one_ahead() -> None:
    """They part within guesses, one two tokens on; that one is parked, the other goes on."""
    for seed in range(40):
        paper = PaperEngine(num_pages=6, num_slots=8, max_rows=8, max_step_tokens=64)
        paper.add(*group(6, prompt(40 + seed % 20), 60))
        rng = random.Random(seed)
        while paper.step() is not None:
            paper.scheduler.check()
            for sequence in paper.scheduler.running:
                sequence.drafts = tuple(rng.randrange(3) for _ in range(4))
        paper.check_end()
