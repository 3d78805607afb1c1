"""Pages that are kept coded, chosen, swapped and copied, under a whole model."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch
from torch import Tensor

from practicum.errors import UsageError
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.pages import num_pages
from practicum.policy.engine.runner import Runner
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Run, Step
from practicum.policy.model.shape import AttentionRule
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer

LENGTH = 600
TOKENS = [(7 * i * i + 3 * i) % 256 for i in range(LENGTH)]
POLICIES = [
    KvPolicy(bits=8),
    KvPolicy(bits=4, recent=0),
    KvPolicy(bits=4, top_pages=3),
    KvPolicy(top_pages=3),
    KvPolicy(window=70, sinks=4),
]
NAMES = ["int8", "int4", "int4-top", "top", "window"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    folder = tmp_path_factory.mktemp("model")
    write_tiny(folder, config=tiny_config(hidden_size=192, num_layers=2, context_length=1024))
    model = load_transformer(folder, torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0 if parameter.dim() == 2 else 1.0)
    return model


def sequence(pages: list[int]) -> Sequence:
    return Sequence([], 0, array("i", TOKENS), array("i", pages))


def compute(runner: Runner, one: Sequence, chunks: list[int], first: int = 0) -> Tensor:
    """Hidden states of the tokens from `first` on, computed in chunks of these sizes."""
    states: list[Tensor] = []
    with torch.inference_mode():
        for count in chunks:
            states.append(runner.run(Step(runs=[Run(one, first, count, (), count)])))
            first += count
    return torch.cat(states)


def whole(model: Transformer, policy: KvPolicy) -> Tensor:
    return compute(Runner(model, 20, kv=policy), sequence(list(range(19))), [LENGTH])


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_chunks_and_places_change_no_bit(model: Transformer, policy: KvPolicy) -> None:
    right = whole(model, policy)
    assert not torch.equal(right, whole(model, KvPolicy())), "the policy does nothing"
    runner = Runner(model, 40, kv=policy, num_exact=11)
    chunks = [1, 127, 100, 28, 3, 90, 35, 128, 60, *[1] * 28]
    assert torch.equal(compute(runner, sequence(list(range(39, 20, -1))), chunks), right)


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_pages_come_back_from_the_swap_space_as_they_were(
    model: Transformer, policy: KvPolicy, in_file: bool, tmp_path: Path
) -> None:
    right = whole(model, policy)
    runner = Runner(model, 60, tmp_path if in_file else None, policy, num_exact=24)
    one, other = sequence(list(range(19))), sequence(list(range(20, 39)))
    parked = list(one.pages)
    runner.needed = lambda: parked[6:] if one.pages else []  # as the engine tells of others
    compute(runner, one, [450])
    with torch.inference_mode():
        for page in range(num_pages(450)):
            runner.store.save(page, slot=page)
    one.pages = array("i")
    compute(runner, other, [300, 300])  # takes the exact places
    back = sequence(list(range(40, 59)))
    with torch.inference_mode():
        for page in range(num_pages(450)):
            runner.store.load(page, back.pages[page], lambda: back.pages[6:])
    assert torch.equal(compute(runner, back, [150], first=450), right[450:])


@pytest.mark.parametrize("policy", POLICIES, ids=NAMES)
def test_a_copied_page_leaves_its_source_alone(model: Transformer, policy: KvPolicy) -> None:
    right = whole(model, policy)
    runner = Runner(model, 40, kv=policy, num_exact=30)
    one = sequence(list(range(19)))
    compute(runner, one, [430])
    branch = sequence([*range(13), 30, *range(31, 36)])  # position 430 is in page 13
    branch.tokens[430:] = array("i", [5] * 170)
    runner.needed = lambda: [*one.pages, *branch.pages]
    with torch.inference_mode():
        run = Run(branch, 430, 170, (), 170)
        different = runner.run(Step(copies=[(13, 30)], runs=[run]))
    assert not torch.equal(different, right[430:])
    assert torch.equal(compute(runner, one, [170], first=430), right[430:])


def test_what_is_copied_stays_until_it_is(model: Transformer) -> None:
    policy = KvPolicy(bits=4)
    right = whole(model, policy)
    runner = Runner(model, 40, kv=policy, num_exact=15)
    pages = list(range(18, -1, -1))
    compute(runner, sequence(pages), [450])  # all exact places are in use
    branch = sequence([*pages[:13], 30])
    with torch.inference_mode():
        step = Step(copies=[(pages[13], 30)], runs=[Run(branch, 430, 1, (), 1)])
        assert torch.equal(runner.run(step), right[430:431])


def test_a_recent_block_of_codes_alone_is_enough_to_go_on(model: Transformer) -> None:
    policy = KvPolicy(bits=4, recent=0)
    right = whole(model, policy)
    runner = Runner(model, 60, kv=policy, num_exact=20)
    one = sequence(list(range(19)))
    compute(runner, one, [300, 300])
    compute(runner, sequence(list(range(20, 39))), [300, 300])
    again = sequence([*one.pages[:16], 50, 51, 52])
    assert torch.equal(compute(runner, again, [88], first=512), right[512:])


def test_coded_pages_are_as_small_as_is_said(model: Transformer) -> None:
    for policy in POLICIES:
        store = Runner(model, 20, kv=policy, num_exact=12).store
        parts = [store.coded, store.bounds, None if policy.bits < 16 else store.exact]
        held = sum(part.nbytes for part in parts if part is not None)
        assert held == 20 * policy.page_bytes(model.shape, model.dtype)


def test_too_few_exact_pages_are_refused(model: Transformer) -> None:
    runner = Runner(model, 40, kv=KvPolicy(bits=4), num_exact=5)
    with pytest.raises(UsageError, match="5 exact pages are too few"):
        compute(runner, sequence(list(range(19))), [LENGTH])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"bits": 5}, "16, 8 or 4 bits, not 5"),
        ({"recent": 100}, "a multiple of 128, not 100"),
        ({"window": 0}, "at least 1 token, not 0"),
        ({"window": 2**64 + 3}, "window can be 2147483647 at most"),
        ({"window": 10, "top_pages": 3}, "choose a window or top_pages"),
        ({"sinks": -1}, "cannot be negative"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(settings: dict[str, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        KvPolicy(**settings)  # pyright: ignore[reportArgumentType]


def test_a_recipe_narrows_windows_in_the_layers_it_names() -> None:
    policy = KvPolicy(window=100, sinks=4, layers=frozenset({1}))
    wide, narrow = AttentionRule(1.0), AttentionRule(1.0, window=50)
    assert policy.rule(0, wide) == wide
    assert policy.rule(1, wide) == AttentionRule(1.0, window=100, sinks=4)
    assert policy.rule(1, narrow) == narrow
    chosen = KvPolicy(top_pages=7)
    assert chosen.top_of(0, wide) == 7
    assert chosen.top_of(0, narrow) == 0
