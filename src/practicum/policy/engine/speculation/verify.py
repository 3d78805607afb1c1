"""Verification by coupled sampling: draw the target's own token, and go on while it is the draft.

Every token has a uniform number of its own, and the target's draw is a function of its logits and
that number. So each token drawn here is the one that plain decoding would have drawn from the same
logits, and the draft decides only whether the next row of logits can be used: the output is plain
decoding's, token for token, whatever was proposed.

Speculative rejection sampling keeps the distribution as well, but not the tokens: what is sampled
then depends on the drafts, hence on the batch, the history and the machine. It accepts no more: a
proposer that names one token x is accepted there with probability min(1, p(x) / 1) = p(x), and
here with the probability that the draw gives x, which is p(x).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def never(token: int) -> bool:
    return False


def verify(
    drafts: Sequence[int], draw: Callable[[int], int], ends: Callable[[int], bool] = never
) -> list[int]:
    """The tokens that plain decoding would sample next: the drafts it agrees with, and one more.

    `draw(row)` is the token that the target samples from row `row` of the logits: row 0 is that
    after the last known token, row i that after draft i - 1. It is called with 0, 1, 2, ... in
    order, and with i only once the drafts before i are known to be right, so that it may count
    tokens for penalties or advance a grammar. A token for which `ends` is true is the last.

    Example:
        verify([5, 7], draw=[5, 8, 1].__getitem__) == [5, 8]
    """
    tokens: list[int] = []
    for row in range(len(drafts) + 1):
        token = draw(row)
        tokens.append(token)
        if ends(token) or row == len(drafts) or token != drafts[row]:
            break
    return tokens
