"""`practicum doctor --parity MODEL`: does the trainer find the log-probs that the engine recorded?

Where the two differ, training silently learns from the difference. Completions are sampled as in a
run, many at once and with a beginning in common, and scored as in a run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from practicum.policy.engine.engine import Engine
from practicum.policy.model.forest import plant
from practicum.policy.model.hub import find_model
from practicum.policy.model.native import kernels
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer
from practicum.policy.train.logprobs import token_logprobs
from practicum.policy.train.recompute import hidden_states
from practicum.sampling import Completion, Sampling

Dtype = Literal["bfloat16", "float32"]
Other = Literal["trainer", "transformers"]

PREAMBLE = (
    "The station on the hill kept a diary of the weather. On the first day it rained from morning "
    "to evening, on the second the wind came from the west, and on the third there was snow.\n\n"
)
PROMPTS = (
    f"{PREAMBLE}Question: on which day did it snow?\nAnswer:",
    f"{PREAMBLE}Question: where did the wind come from?\nAnswer:",
    f"{PREAMBLE}Now write down how the fourth day began.",
    "12 + 30 =",
)
SAMPLES = 3
"""Of every prompt."""
NEW_TOKENS = 32
FLOAT32_LIMIT = 1e-5
"""Sums in another order, as libraries choose by the number of rows. (3e-6 at 135M parameters)"""
ROUNDING_LIMIT = 0.1
"""The rounding of bfloat16 without kernels, in another order. (0.03 at 135M parameters)"""
TRANSFORMERS_LIMIT = 1e-4
"""Between two implementations in float32. (3e-6 at 135M parameters)"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The engine's log-probs of sampled tokens beside those of another."""

    dtype: Dtype
    """Of the engine"""
    other: Other
    """transformers always computes in float32"""
    compiled: bool
    """Whether all of the model runs in compiled kernels"""
    num_tokens: int
    num_equal: int
    """Tokens with the same log-prob, bit for bit in float32, as trajectories keep it"""
    mean_difference: float
    """Of log-probs, absolute, like the next"""
    max_difference: float
    k3: float
    """Estimates the KL divergence of the other from the engine: mean of r - 1 - log r"""
    limit: float | None
    """Of the mean difference; 0 promises the same bits, None nothing (unequal dtypes)"""

    @property
    def holds(self) -> bool:
        return self.limit is None or self.mean_difference <= self.limit


def check_parity(model: str, *, against_transformers: bool, as_json: bool) -> int:
    """Compare and print. Returns 3 if a promise is broken, else 0. `model` is as for `serve`."""
    folder, name = find_model(model)
    found: list[Comparison] = []
    for dtype in ("bfloat16", "float32"):
        found += compare(folder, name, dtype, against_transformers=against_transformers)
    verdict = judge(found)
    holds = all(comparison.holds for comparison in found)
    if as_json:
        rows = [asdict(comparison) | {"holds": comparison.holds} for comparison in found]
        print(
            json.dumps(
                {"model": name, "holds": holds, "verdict": verdict, "comparisons": rows}, indent=1
            )
        )
    else:
        _print_table(name, found, verdict)
    return 0 if holds else 3


def compare(
    folder: Path, name: str, dtype: Dtype, *, against_transformers: bool = False
) -> list[Comparison]:
    """Sample in one dtype and score what was sampled."""
    model = load_transformer(folder, getattr(torch, dtype))
    prompts, completions = asyncio.run(_sample(Engine(model, Tokens(folder), name=name)))
    sequences = [
        [*prompt, *completion.token_ids] for prompt, completion in zip(prompts, completions)
    ]
    recorded_N = torch.tensor([p for completion in completions for p in completion.logprobs])
    starts = [len(prompt) for prompt in prompts]
    compiled = _all_compiled(model)
    trained_N = trainer_logprobs(model, sequences, starts)
    if dtype == "bfloat16":
        limit = 0.0 if compiled else ROUNDING_LIMIT
    else:
        limit = FLOAT32_LIMIT
    found = [_comparison(dtype, "trainer", compiled, recorded_N, trained_N, limit)]
    if against_transformers:
        del model
        theirs_N = _transformers_logprobs(folder, sequences, starts)
        limit = TRANSFORMERS_LIMIT if dtype == "float32" else None
        found.append(_comparison(dtype, "transformers", compiled, recorded_N, theirs_N, limit))
    return found


def trainer_logprobs(
    model: Transformer, sequences: Sequence[Sequence[int]], starts: Sequence[int]
) -> Tensor:
    """float32 [N]: of every token from each sequence's start on, as the trainer computes them."""
    forest = plant(sequences)
    paths = zip(forest.paths, starts)
    rows = np.concatenate([path[start - 1 : -1] for path, start in paths])
    rows_N = torch.from_numpy(rows)  # pyright: ignore[reportUnknownMemberType]
    targets_N = torch.tensor(
        [t for tokens, start in zip(sequences, starts) for t in tokens[start:]]
    )
    with torch.no_grad():
        hidden_TD = hidden_states(model, forest)
        scored = token_logprobs(
            hidden_TD, model.head, rows_N, targets_N, 1.0, model.shape.logit_softcap
        )
    return scored.logprobs_M.float()


def judge(found: Sequence[Comparison]) -> str:
    """In a sentence or two: whether it holds, and what to do if not."""
    broken = [comparison for comparison in found if not comparison.holds]
    if any(comparison.other == "transformers" for comparison in broken):
        return (
            "Our decoder computes something else than transformers for this model: do not use it "
            "here, and report its config.json."
        )
    if broken:
        rest = {comparison.dtype for comparison in found} - {one.dtype for one in broken}
        instead = f"train with model.dtype = '{min(rest)}'" if rest else "do not train with it"
        return (
            f"Engine and trainer disagree on this model in {broken[0].dtype}: {instead}, and "
            "report this table."
        )
    if all(comparison.compiled for comparison in found if comparison.dtype == "bfloat16"):
        return (
            "Parity holds: in bfloat16 the trainer finds the engine's log-probs bit for bit, so "
            "that importance ratios begin at exactly 1."
        )
    return (
        "Parity holds to rounding only: without compiled kernels for this model bfloat16 rounds "
        "in another order on each side. Importance ratios absorb it. To have the same bits, run "
        "where there are a C++ compiler and AVX-512 with bfloat16 (all sizes of the model must be "
        "multiples of 32); model.dtype = 'float32' comes close anywhere."
    )


async def _sample(engine: Engine) -> tuple[list[list[int]], list[Completion]]:
    """Prompts and completions, in the same order."""
    room = engine.context_length
    texts = [text for text in PROMPTS for _ in range(SAMPLES)]
    prompts = [engine.tokens.encode(text)[: max(1, room // 2)] for text in texts]
    calls = [
        engine.generate(
            prompt, Sampling(min(NEW_TOKENS, room - len(prompt)), seed=seed, ignore_eos=True)
        )
        for seed, prompt in enumerate(prompts)
    ]
    try:
        return prompts, list(await asyncio.gather(*calls))
    finally:
        engine.close()


def _all_compiled(model: Transformer) -> bool:
    """Whether every product and every attention runs in a kernel."""
    sizes = [parameter.shape[-1] for parameter in model.parameters() if parameter.dim() > 1]
    return model.shape.head_size <= 256 and kernels.serves(
        model.dtype, model.shape.head_size, *sizes
    )


def _transformers_logprobs(
    folder: Path, sequences: Sequence[Sequence[int]], starts: Sequence[int]
) -> Tensor:
    """float32 [N], of one sequence after the other."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    parts: list[Tensor] = []
    for tokens, start in zip(sequences, starts):
        with torch.inference_mode():
            logits_LV: Tensor = model(torch.tensor([tokens])).logits[0, start - 1 : -1]
        targets = torch.tensor(tokens[start:])
        parts.append(logits_LV.double().log_softmax(-1).gather(1, targets[:, None]).squeeze(1))
    return torch.cat(parts).float()


def _comparison(
    dtype: Dtype, other: Other, compiled: bool, ours: Tensor, theirs: Tensor, limit: float | None
) -> Comparison:
    log_ratio = theirs.double() - ours.double()
    return Comparison(
        dtype=dtype,
        other=other,
        compiled=compiled,
        num_tokens=len(ours),
        num_equal=int((ours == theirs).sum()),
        mean_difference=float(log_ratio.abs().mean()),
        max_difference=float(log_ratio.abs().max()),
        k3=float((torch.expm1(log_ratio) - log_ratio).mean()),
        limit=limit,
    )


def _print_table(name: str, found: Sequence[Comparison], verdict: str) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("engine", "beside"):
        table.add_column(column)
    for column in ("tokens", "same bits", "mean |d|", "max |d|", "k3"):
        table.add_column(column, justify="right")
    for row in found:
        table.add_row(
            row.dtype,
            "transformers f32" if row.other == "transformers" else "trainer",
            str(row.num_tokens),
            f"{row.num_equal / row.num_tokens:.1%}",
            f"{row.mean_difference:.1e}",
            f"{row.max_difference:.1e}",
            f"{row.k3:.1e}",
            style="" if row.holds else "red",
        )
    console = Console(highlight=False)
    console.print(f"Log-probs of what {name} sampled; d is their difference.", markup=False)
    console.print(table)
    console.print(verdict)
