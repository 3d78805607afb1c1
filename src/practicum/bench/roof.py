"""The roof: how fast a work could be if an engine did nothing but its matrix products.

Usage: python -m practicum.bench.roof MODEL_FOLDER OPTIONS_JSON     {"kind": "bf16" or "w8a8"}
A contender like the others, so that it is measured in the same run: for a work it multiplies what
an ideal engine would have to: every distinct prompt token once, then one row per live completion
and step, through all layers (each with weights of its own, so that none stays in the cache) and
the head. Packed weights, oneDNN, one product after another. Where oneDNN is slower in bfloat16 than
in float32 (no AVX-512), "bf16" is float32 products, which is the fastest way to the same numbers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.bench.peers.engine_contender import Json, claim_stdout, obey, say_absent

ANSWERS = claim_stdout() if __name__ == "__main__" else sys.stdout

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from practicum.policy.model.products import multiplies_half  # noqa: E402

CHUNK = 512
"""Most rows of one product; prefill is cut into chunks of this size."""

Product = Callable[[int], Tensor]
"""Number of rows -> one matrix product over so many."""


@dataclass(frozen=True, slots=True)
class Step:
    """Rows through the layers, and how many of them through the head."""

    rows: int
    head_rows: int


def main() -> None:
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    config = json.loads((folder / "config.json").read_text())
    if options["kind"] == "w8a8" and not multiplies_half():  # a thousand times slower than float32
        say_absent(ANSWERS, "oneDNN has fast products of int8 only with AVX-512")
        return
    layers, head = build_products(config, options["kind"])

    @torch.inference_mode()
    def run(rounds: list[list[Json]]) -> Json:
        for step in steps(rounds):
            for product in layers:
                product(step.rows)
            head(step.head_rows)
        num_output = sum(ask["max_new_tokens"] for asks in rounds for ask in asks)
        return {"num_prompt": 0, "num_output": num_output, "num_reused": None}

    obey(ANSWERS, run)


def steps(rounds: Sequence[Sequence[Json]]) -> list[Step]:
    """What must go through the network for a work, if everything that can be reused is."""
    known: dict[tuple[int, int], int] = {}  # (node, token) -> node: a trie of all tokens so far
    histories: dict[int, list[int]] = {}
    result: list[Step] = []
    for asks in rounds:
        before = len(known)
        ends: set[int] = set()
        for ask in asks:
            history = histories.setdefault(ask["conversation"], [])
            history += ask["append_ids"]
            ends.add(_walk(known, [ask["first_id"], *history[1:]]))
        result += _prefill(len(known) - before, len(ends))
        budgets = [ask["max_new_tokens"] for ask in asks]
        for drawn in range(1, max(budgets)):
            live = sum(budget > drawn for budget in budgets)
            result.append(Step(live, live))
        for ask in asks:
            history = histories[ask["conversation"]]
            sampled = [-1 - ask["conversation"]] * ask["max_new_tokens"]
            history += sampled
            _walk(known, [ask["first_id"], *history[1:-1]])  # the last one is not computed yet
    return result


def _prefill(num_tokens: int, num_prompts: int) -> list[Step]:
    """Chunks of all tokens; the head reads the ends of the prompts with the last one."""
    whole, rest = divmod(num_tokens, CHUNK)
    sizes = [CHUNK] * whole + [rest] * (rest > 0)
    return [
        Step(size, num_prompts if index == len(sizes) - 1 else 0)
        for index, size in enumerate(sizes)
    ]


def _walk(known: dict[tuple[int, int], int], token_ids: Sequence[int]) -> int:
    """Enter a sequence into the trie; the node where it ends."""
    node = 0
    for token in token_ids:
        node = known.setdefault((node, token), len(known) + 1)
    return node


def build_products(config: dict[str, Any], kind: str) -> tuple[list[Product], Product]:
    """The products of all layers in order, and that of the head."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads = config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // num_heads
    query, key = num_heads * head_size, config["num_key_value_heads"] * head_size
    shapes = [(query + 2 * key, hidden), (hidden, query), (2 * inner, hidden), (hidden, inner)]
    make = {"bf16": packed_bf16, "w8a8": packed_int8}[kind]
    layers = [make(*shape) for _ in range(config["num_hidden_layers"]) for shape in shapes]
    return layers, make(config["vocab_size"], hidden)


def packed_bf16(num_out: int, num_in: int) -> Product:
    dtype = torch.bfloat16 if multiplies_half() else torch.float32
    weight = (torch.randn(num_out, num_in) * 0.02).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 64)
    x_MD = torch.randn(CHUNK, num_in).to(dtype)

    def product(num_rows: int) -> Tensor:
        if num_rows == 0:
            return x_MD[:0]
        return torch.ops.mkldnn._linear_pointwise(x_MD[:num_rows], packed, None, "none", [], "")

    return product


def packed_int8(num_out: int, num_in: int) -> Product:
    weight = torch.randint(-127, 128, (num_out, num_in), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(weight, [64, num_in])
    scales, zeros = torch.full((num_out,), 1e-3), torch.zeros(num_out, dtype=torch.int64)
    x_MD = torch.randint(0, 256, (CHUNK, num_in), dtype=torch.uint8)

    def product(num_rows: int) -> Tensor:
        if num_rows == 0:
            return x_MD[:0]
        return torch.ops.onednn.qlinear_pointwise(
            x_MD[:num_rows], 1.0, 128, packed, scales, zeros, None,
            1.0, 0, torch.bfloat16, "none", [], "",
        )  # fmt: skip

    return product


if __name__ == "__main__":
    main()
