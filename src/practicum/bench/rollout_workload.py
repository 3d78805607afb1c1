"""The work of `practicum bench engine`: what is asked of every engine, in token ids.

The one thing to know: the first token of every prompt is replaced by one of this run's own, so that
nothing an engine kept from an earlier run can be reused, as after a weight update; and where a
prompt must share nothing with its neighbours, by one of its own. Counts stay the same.

Every run of a session has a `number` of its own, from 0.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.policy.model.tokens import Tokens
from practicum.types import Message

GROUP_SIZE = 4
ROWS = (1, 8, 32, 128, 256)
SHARED_PROMPT_TOKENS = 2000
SHARED_GROUP_SIZE = 16
NUM_CONVERSATIONS = 8
NUM_TURNS = 4
TOOL_OUTPUT_TOKENS = 128
TURN_TOKENS = 48
MARK_BASE = 300
"""The first ordinary token id that may stand for a prompt's first token."""

MARKS_PER_RUN = 32

SYSTEM = (
    "You solve short exercises for a student. Work through them in small steps, do not repeat "
    "the question, and finish with one line that begins with the word Result."
)
QUESTIONS = (
    "A baker fills 14 trays with 9 rolls each and sells 78 rolls before noon. How many are left?",
    "Write a Python function that tells whether a word is a palindrome; what does it cost in time?",
    "Order the fractions 5/8, 7/12 and 2/3 from the smallest to the largest; show how.",
    "Lena saves 35 euros a month and needs 610 euros. She has 120 already. How many months?",
    "Count the consonants of each of these six words: lantern, echo, orchard, rhythm, window, sky.",
    "A film begins at 19:25 and lasts 134 minutes with a pause of 15 minutes. When does it end?",
    "Six pumps empty a basin in 10 hours. How long would four of the same pumps need for it?",
    "Continue the sequence 1, 4, 10, 22, 46 by three numbers and say what makes it grow.",
    "Find the last digit of 7 to the power of 23 without computing the whole number first.",
    "Write the number 203 in base two and in base eight, and check both of them by adding up.",
    "A square garden has an area of 196 square metres. How long is the fence all around it?",
    "Say the sentence 'my brother waits at the old bridge' in both Spanish and Italian, please.",
    "A bicycle of 240 euros gets 20 percent cheaper, then 5 percent dearer. What does it cost now?",
    "Name three ways in which a set differs from a list, with one good use of each of them.",
    "Three years ago Omar was three times as old as Ida. Now they are 30 together. How old is she?",
    "In how many orders can 5 different books stand if two of them must always be neighbours?",
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One completion: `append_ids` go after what its conversation holds, then tokens are drawn."""

    conversation: int
    append_ids: tuple[int, ...]
    max_new_tokens: int
    first_id: int
    """Stands in place of the prompt's first token."""
    seed: int


@dataclass(frozen=True, slots=True)
class Work:
    """Rounds of completions; those of a round are asked for at once, rounds follow each other."""

    name: str
    rounds: tuple[tuple[Ask, ...], ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(ask.max_new_tokens for asks in self.rounds for ask in asks)


def first_token(tokens: Tokens) -> Work:
    """One token: how soon a fresh process gives it."""
    return Work("first token", ((_ask(0, _prompts(tokens)[0], 1, mark=0),),))


def rollout(tokens: Tokens, number: int) -> Work:
    """16 prompts of 72 tokens in the mean, 4 samples each of 64 to 128 tokens."""
    budgets = random.Random(0)
    asks = [
        _ask(
            index * GROUP_SIZE + sample,
            prompt,
            budgets.randint(64, 128),
            mark=number * MARKS_PER_RUN,
            seed=number * 1000 + index * GROUP_SIZE + sample,
        )
        for index, prompt in enumerate(_prompts(tokens))
        for sample in range(GROUP_SIZE)
    ]
    return Work("rollout", (tuple(asks),))


def rows(tokens: Tokens, num_rows: int, number: int) -> Work:
    """So many samples at once, 4 of a prompt, all of the same length: the batch never shrinks."""
    prompts = _prompts(tokens)
    num_new = 64 if num_rows == 1 else 32
    asks: list[Ask] = []
    for row in range(num_rows):
        # Further prompts differ from the first 16 in their first token.
        again, which = divmod(row // GROUP_SIZE, len(prompts))
        mark = number * MARKS_PER_RUN + again
        seed = number * 1000 + row
        asks.append(_ask(row, prompts[which], num_new, mark=mark, seed=seed))
    return Work(f"{num_rows} rows", (tuple(asks),))


def shared(tokens: Tokens, number: int, *, copied: bool) -> Work:
    """16 samples of one prompt of 2,000 tokens; `copied` makes it 16 prompts that share nothing."""
    budgets = random.Random(1)
    prompt = _ledger(tokens, SHARED_PROMPT_TOKENS, seed=number)
    asks = [
        _ask(
            sample,
            prompt,
            budgets.randint(64, 128),
            mark=number * MARKS_PER_RUN + (sample if copied else 0),
            seed=number * 1000 + sample,
        )
        for sample in range(SHARED_GROUP_SIZE)
    ]
    return Work("copied prompt" if copied else "shared prompt", (tuple(asks),))


def turns(tokens: Tokens, number: int, *, forgetful: bool) -> Work:
    """8 conversations of 4 turns with a tool's output between them.

    They go in two waves, so that each is parked while others generate. `forgetful` gives every turn
    a first token of its own: nothing of the turns before can be reused.
    """
    prompts = _prompts(tokens)[:NUM_CONVERSATIONS]
    waves = (range(0, NUM_CONVERSATIONS, 2), range(1, NUM_CONVERSATIONS, 2))
    rounds: list[tuple[Ask, ...]] = []
    for turn in range(NUM_TURNS):
        for wave in waves:
            asks: list[Ask] = []
            for who in wave:
                place = who * NUM_TURNS + turn
                seed = number * MARKS_PER_RUN + place
                added = prompts[who] if turn == 0 else _ledger(tokens, TOOL_OUTPUT_TOKENS, seed)
                mark = number * MARKS_PER_RUN + (place if forgetful else 0)
                asks.append(_ask(who, added, TURN_TOKENS, mark=mark, seed=seed))
            rounds.append(tuple(asks))
    return Work("turns without reuse" if forgetful else "turns", tuple(rounds))


def _ask(
    conversation: int, append_ids: Sequence[int], max_new_tokens: int, *, mark: int, seed: int = 0
) -> Ask:
    return Ask(conversation, tuple(append_ids), max_new_tokens, MARK_BASE + mark, seed)


def _prompts(tokens: Tokens) -> list[list[int]]:
    return [
        tokens.render((Message("system", SYSTEM), Message("user", question)))
        for question in QUESTIONS
    ]


def _ledger(tokens: Tokens, num_tokens: int, seed: int) -> list[int]:
    """Text without end: the book of a harbour."""
    draw = random.Random(seed)
    goods = ("grain", "timber", "salt", "copper", "wool", "glass", "oil", "slate")
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += tokens.encode(
            f"Day {draw.randint(1, 365)}: pier {draw.randint(1, 40)} took in "
            f"{draw.randint(2, 900)} crates of {draw.choice(goods)} and sent out "
            f"{draw.randint(2, 900)} of {draw.choice(goods)}.\n"
        )
    return ids[:num_tokens]
