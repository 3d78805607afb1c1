"""The compiled kernels as functions of tensors. Nothing here is differentiable.

The one thing to know: `serves(...)` says whether the kernels run for given tensors (bfloat16, sizes
that fill whole vectors); ask it first. Outputs are written whole, so they start uninitialised.

Shapes: as in `policy.model.ops` and `policy.model.paged`.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int, c_int64, c_void_p
from typing import Literal

import torch
from torch import Tensor

from practicum.policy.model.native.build import load
from practicum.policy.model.native.matrix import Quantised

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}  # in the order of rows.h
VOCABULARY_BLOCK = 256
"""Logits that share one peak and one sum; `VOCABULARY_BLOCK` in rows.h."""

KINDS = {"bf16": 0, "int8": 1, "int4": 2}  # in the order of matrix.h

Weight = Tensor | Quantised
"""What a matrix product reads: a parameter in place, or a quantised copy of one."""

_num_threads = 0


def serves(dtype: torch.dtype, *multiples_of_32: int) -> bool:
    """Whether there are kernels for this dtype and these sizes."""
    if dtype != torch.bfloat16 or any(size % 32 for size in multiples_of_32):
        return False
    return load() is not None


def library() -> ctypes.CDLL:
    """The kernels, using as many threads as torch does now."""
    global _num_threads
    kernels = load()
    assert kernels is not None, "ask serves() first"
    wanted = torch.get_num_threads()
    if wanted != _num_threads:
        if kernels.practicum_start(c_int(wanted)):
            raise RuntimeError("the system does not permit matrix tiles (PRACTICUM_NATIVE=avx512)")
        _num_threads = wanted
    return kernels


def pointer(tensor: Tensor | None) -> c_void_p | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous(), "kernels read and write contiguous tensors only"
    return c_void_p(tensor.data_ptr())


def _wide(bias_E: Tensor | None) -> Tensor | None:
    """A bias as kernels read it. Hold the result for as long as the kernel runs."""
    return None if bias_E is None else bias_E.float()


def matrix(weight: Weight) -> tuple[c_int, c_void_p | None, c_void_p | None]:
    """Kind, values and scales, as the kernels take them."""
    if isinstance(weight, Quantised):
        return c_int(KINDS[weight.kind]), pointer(weight.values), pointer(weight.scales)
    return c_int(KINDS["bf16"]), pointer(weight), None


def rms_norm(x_TD: Tensor, weight: Tensor, eps: float, plus_one: bool) -> Tensor:
    x_TD = x_TD.contiguous()
    out = torch.empty(x_TD.shape, dtype=weight.dtype)
    size = x_TD.shape[-1]
    library().practicum_norm(
        pointer(x_TD), pointer(weight), c_int(plus_one), c_float(eps), pointer(out),
        c_int64(x_TD.numel() // size), c_int64(size),
    )  # fmt: skip
    return out


def linear(x_TD: Tensor, weight_ED: Weight, bias_E: Tensor | None = None) -> Tensor:
    x_TD, wide_bias = x_TD.contiguous(), _wide(bias_E)
    size = x_TD.shape[-1]
    out = torch.empty((*x_TD.shape[:-1], weight_ED.shape[0]))
    library().practicum_linear(
        pointer(x_TD), *matrix(weight_ED), pointer(wide_bias), pointer(out),
        c_int64(x_TD.numel() // size), c_int64(size), c_int64(weight_ED.shape[0]), c_int(0),
    )  # fmt: skip
    return out


def gate(gate_up_T2I: Tensor, kind: Activation) -> Tensor:
    gate_up_T2I = gate_up_T2I.contiguous()
    inner = gate_up_T2I.shape[-1] // 2
    out = torch.empty((*gate_up_T2I.shape[:-1], inner), dtype=torch.bfloat16)
    library().practicum_gate(
        pointer(gate_up_T2I), c_int(ACTIVATIONS[kind]), pointer(out),
        c_int64(out.numel() // inner), c_int64(inner),
    )  # fmt: skip
    return out


def put(key_TKC: Tensor, value_TKC: Tensor, page: Tensor, tokens: Tensor, slots: Tensor) -> None:
    """Copy the keys and values of `tokens` into `slots`, both int64 [n], of one layer's pages."""
    key_TKC, value_TKC = key_TKC.contiguous(), value_TKC.contiguous()
    library().practicum_put(
        pointer(key_TKC), pointer(value_TKC), pointer(page), pointer(tokens), pointer(slots),
        c_int64(len(slots)), c_int64(key_TKC.shape[1]), c_int64(key_TKC.shape[2]),
    )  # fmt: skip


def attend(
    query_THC: Tensor,
    pages: Tensor,
    positions: Tensor,
    tables: Tensor,
    starts: Tensor,
    scale: float,
    softcap: float,
    window: int,
    sinks: int,
) -> Tensor:
    query_THC = query_THC.contiguous()
    out = torch.empty_like(query_THC)
    num_tokens, num_heads, head_size = query_THC.shape
    library().practicum_attend(
        pointer(query_THC), pointer(pages), pointer(positions), pointer(tables), pointer(starts),
        pointer(out), c_int64(num_tokens), c_int64(num_heads), c_int64(pages.shape[2]),
        c_int64(head_size), c_float(scale), c_float(softcap), c_int64(window), c_int64(sinks),
    )  # fmt: skip
    return out


def head(
    hidden_ND: Tensor, weight_VD: Weight, factors_N: Tensor, softcap: float, room: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits times each row's factor [N, V], and peak and sum of each block of the vocabulary."""
    hidden_ND = hidden_ND.contiguous()
    num_rows, size = hidden_ND.shape
    vocab_size = weight_VD.shape[0]
    num_blocks = -(-vocab_size // VOCABULARY_BLOCK)
    room = torch.empty(num_rows * vocab_size) if room is None else room[: num_rows * vocab_size]
    logits = room.view(num_rows, vocab_size)
    peaks, totals = torch.empty((2, num_rows, num_blocks)).unbind()
    library().practicum_head(
        pointer(hidden_ND), *matrix(weight_VD), pointer(factors_N), c_float(softcap),
        pointer(logits), pointer(peaks), pointer(totals), c_int64(num_rows), c_int64(size),
        c_int64(vocab_size),
    )  # fmt: skip
    return logits, peaks, totals


def log_totals(peaks: Tensor, totals: Tensor, vocab_size: int) -> Tensor:
    """float64 [N]: log of each row's sum of exponentials."""
    out = torch.empty(len(peaks), dtype=torch.float64)
    library().practicum_log_totals(
        pointer(peaks), pointer(totals), pointer(out), c_int64(len(peaks)), c_int64(vocab_size)
    )
    return out


def draw(
    logits_NV: Tensor, peaks: Tensor, totals: Tensor, rows_M: Tensor, uniforms_M: Tensor
) -> Tensor:
    """int64 [M]: for each draw the first token at which the cumulative mass exceeds its uniform."""
    out = torch.empty_like(rows_M)
    library().practicum_draw(
        pointer(logits_NV), pointer(peaks), pointer(totals), pointer(rows_M), pointer(uniforms_M),
        pointer(out), c_int64(len(rows_M)), c_int64(logits_NV.shape[1]),
    )  # fmt: skip
    return out


# What follows is fused: the same arithmetic as the functions above, the same bits, fewer passes.


def norm_linear(
    x_TD: Tensor, norm: Tensor, eps: float, plus_one: bool, weight_ED: Weight, bias_E: Tensor | None
) -> Tensor:
    """`linear(rms_norm(x))`."""
    num_tokens, size = x_TD.shape
    wide_bias = _wide(bias_E)
    out = torch.empty((num_tokens, weight_ED.shape[0]))
    library().practicum_norm_linear(
        pointer(x_TD), pointer(norm), c_int(plus_one), c_float(eps), *matrix(weight_ED),
        pointer(wide_bias), pointer(out), c_int64(num_tokens), c_int64(size),
        c_int64(weight_ED.shape[0]),
    )  # fmt: skip
    return out


def add_linear_(out_TE: Tensor, x_TD: Tensor, weight_ED: Weight) -> None:
    """`out += linear(x)`."""
    library().practicum_linear(
        pointer(x_TD), *matrix(weight_ED), None, pointer(out_TE), c_int64(x_TD.shape[0]),
        c_int64(x_TD.shape[1]), c_int64(weight_ED.shape[0]), c_int(1),
    )  # fmt: skip


def add_mlp_(
    x_TD: Tensor,
    norm: Tensor,
    eps: float,
    plus_one: bool,
    gate_up: Weight,
    down: Weight,
    kind: Activation,
) -> None:
    """`x += linear(gate(linear(rms_norm(x), gate_up)), down)`."""
    num_tokens, size = x_TD.shape
    inner = down.shape[1]
    hidden = torch.empty((num_tokens, inner), dtype=torch.bfloat16)
    library().practicum_norm_gate(
        pointer(x_TD), pointer(norm), c_int(plus_one), c_float(eps), *matrix(gate_up),
        pointer(hidden), c_int64(num_tokens), c_int64(size), c_int64(inner),
        c_int(ACTIVATIONS[kind]),
    )  # fmt: skip
    add_linear_(x_TD, hidden, down)


def quantise_(target: Quantised, weight_ED: Tensor) -> None:
    """Overwrite a quantised copy with the weights as they are now."""
    num_rows, size = weight_ED.shape
    library().practicum_quantise(
        c_int(KINDS[target.kind]), pointer(weight_ED), pointer(target.values),
        pointer(target.scales), c_int64(num_rows), c_int64(size),
    )  # fmt: skip


def rotate_and_put(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    num_heads: int,
    head_size: int,
    pages: Tensor,
    slots: Tensor,
) -> Tensor:
    """Rotated queries [T, H, C]; rotated keys, and values, go to their slots. cos, sin [T, C/2]."""
    num_tokens, num_kv = len(qkv), pages.shape[2]
    query = torch.empty((num_tokens, num_heads, head_size), dtype=torch.bfloat16)
    library().practicum_rotate_and_put(
        pointer(qkv), pointer(cos), pointer(sin), pointer(query), pointer(pages), pointer(slots),
        c_int64(num_tokens), c_int64(num_heads), c_int64(num_kv), c_int64(head_size),
    )  # fmt: skip
    return query


def attend_far(
    query_THC: Tensor,
    pages: Tensor,
    positions: Tensor,
    tables: Tensor,
    starts: Tensor,
    rule: tuple[float, float, int, int],
    recent: int,
    bits: int,
    coded: Tensor | None,
    far_tables: Tensor,
    bounds: Tensor | None,
    top_pages: int,
) -> Tensor:
    """`attend` that reads pages before the recent ones coded, or the `top_pages` of them; `rule` is
    scale, softcap, window and sinks."""
    query_THC = query_THC.contiguous()
    out = torch.empty_like(query_THC)
    num_tokens, num_heads, head_size = query_THC.shape
    scale, softcap, window, sinks = rule
    library().practicum_attend_far(
        pointer(query_THC), pointer(pages), pointer(positions), pointer(tables), pointer(starts),
        pointer(out), c_int64(num_tokens), c_int64(num_heads), c_int64(pages.shape[2]),
        c_int64(head_size), c_float(scale), c_float(softcap), c_int64(window), c_int64(sinks),
        c_int64(recent), c_int64(bits), pointer(coded), pointer(far_tables), pointer(bounds),
        c_int64(top_pages),
    )  # fmt: skip
    return out


def code(
    pages: Tensor,
    sources: Tensor,
    targets: Tensor,
    bits: int,
    coded: Tensor | None,
    bounds: Tensor | None,
) -> None:
    """Code the pages `sources` of one layer into the pages `targets`, both int64 [n]."""
    num_kv = pages.shape[2]
    library().practicum_code(
        pointer(pages), pointer(sources), pointer(targets), c_int64(len(sources)),
        c_int64(num_kv), c_int64(pages.shape[3] // 32), c_int64(bits), pointer(coded),
        pointer(bounds),
    )  # fmt: skip


def decode(coded: Tensor, sources: Tensor, targets: Tensor, bits: int, pages: Tensor) -> None:
    """Write what the codes of the pages `sources` stand for into the pages `targets`."""
    library().practicum_decode(
        pointer(coded), pointer(sources), pointer(targets), c_int64(len(sources)),
        c_int64(pages.shape[2]), c_int64(pages.shape[3] // 32), c_int64(bits), pointer(pages),
    )  # fmt: skip
