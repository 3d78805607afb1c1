"""What approximate attention costs: in the next token's distribution, and in facts not found."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from practicum.bench.long_work import Reader, manual
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.model.head import distribution
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.policy.model.weights import load_transformer

Row = Mapping[str, object]

POLICIES: Mapping[str, KvPolicy] = {
    "int8, own block exact": KvPolicy(bits=8, recent=0),
    "int8": KvPolicy(bits=8, recent=128),
    "int4, own block exact": KvPolicy(bits=4, recent=0),
    "int4": KvPolicy(bits=4, recent=128),
    "int4, 256 more exact": KvPolicy(bits=4, recent=256),
    "top 8 pages": KvPolicy(recent=128, top_pages=8),
    "top 16 pages": KvPolicy(recent=128, top_pages=16),
    "top 16 pages, int4": KvPolicy(bits=4, recent=128, top_pages=16),
    "512 local": KvPolicy(window=512),
    "4 sinks + 512 local": KvPolicy(window=512, sinks=4),
}

NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Felix", "Grace", "Henry")
WORDS = ("tiger", "piano", "river", "candle", "rocket", "garden", "hammer", "pepper")


def quality(folder: Path, quick: bool) -> list[Row]:
    """KL from exact attention to every policy, and how far log-probs of the text move."""
    model, tokens = load_transformer(folder, torch.bfloat16), Tokens(folder)
    length, count = (512, 1) if quick else (2048, 3)
    text = manual()
    texts = [tokens.encode(text[100_000 * i :][: 8 * length])[:length] for i in range(count)]
    exact = [_logprobs(model, KvPolicy(), ids) for ids in texts]
    rows: list[Row] = []
    for name, policy in list(POLICIES.items())[:: 4 if quick else 1]:
        kl, moved = list[Tensor](), list[Tensor]()
        for ids, right in zip(texts, exact, strict=True):
            ours = _logprobs(model, policy, ids)
            kl.append((right.exp() * (right - ours)).sum(-1))
            targets = torch.tensor(ids[length // 2 + 1 :])[:, None]
            moved.append((right[:-1].gather(1, targets) - ours[:-1].gather(1, targets)).abs())
        rows.append(
            {
                "policy": name,
                "KL": float(torch.cat(kl).mean()),
                "highest KL": float(torch.cat(kl).max()),
                "|d logp|": float(torch.cat(moved).mean()),
                "bytes/token": round(policy.page_bytes(model.shape, model.dtype) / 32),
            }
        )
    return rows


def _logprobs(model: Transformer, policy: KvPolicy, ids: Sequence[int]) -> Tensor:
    """float32 [n / 2, V]: after each token of the second half."""
    count = len(ids) // 2
    hidden = Reader(model, policy, len(ids)).read(list(ids), num_logits=count)
    ones = torch.ones(count, dtype=torch.float64)
    return distribution(hidden, model.head, ones).logits.log_softmax(-1)


def needles(folder: Path, attentions: Mapping[str, KvPolicy], quick: bool) -> list[Row]:
    """Facts scattered through prose; the word that follows each name must be likeliest of all."""
    model, tokens = load_transformer(folder, torch.bfloat16), Tokens(folder)
    lengths, count = ((1024,), 1) if quick else ((1024, 2048, 4096, 7680), 2)
    rows: list[Row] = []
    for name, policy in attentions.items():
        row: dict[str, object] = {"attention": name}
        for length in lengths:
            found = [
                hit
                for number in range(count)
                for hit in _found(model, tokens, policy, length, number)
            ]
            row[f"{length:,}"] = f"{sum(found)}/{len(found)}"
        rows.append(row)
    return rows


def _found(
    model: Transformer, tokens: Tokens, policy: KvPolicy, length: int, number: int
) -> list[bool]:
    """For each name whether its word has the highest log-probability of the eight."""
    rng = random.Random(number)
    words = list(WORDS)
    rng.shuffle(words)
    prose = tokens.encode(manual()[50_000 * number :][: 8 * length])
    facts = [tokens.encode(f"\nThe secret word of {n} is {w}.\n") for n, w in zip(NAMES, words)]
    gap = (length - sum(map(len, facts))) // len(facts)
    ids: list[int] = []
    for index, fact in enumerate(facts):
        ids += fact + prose[index * gap : (index + 1) * gap]
    # Questions begin at a multiple of 128 and are shorter: none completes a block of keys.
    ids = ids[: len(ids) // 128 * 128]
    choices = torch.tensor([tokens.encode(f" {word}")[0] for word in words])
    reader = Reader(model, policy, len(ids) + 128)
    reader.read(ids)
    hits: list[bool] = []
    for index, name in enumerate(NAMES):
        hidden = reader.read(tokens.encode(f"\nThe secret word of {name} is"), len(ids))
        logits = distribution(hidden, model.head, torch.ones(1, dtype=torch.float64)).logits[0]
        hits.append(int(logits[choices].argmax()) == index)
    return hits
