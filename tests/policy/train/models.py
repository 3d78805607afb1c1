"""Small random models, trajectories and a flat reference decoder for the tests of training."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.policy.model.shape import LayerShape, Norms, Rotary, Shape
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.algorithms import ALGORITHMS
from practicum.policy.train.batch import Batch, assemble, micro_batches
from practicum.policy.train.groups import score
from practicum.policy.train.losses import Clip
from practicum.policy.train.masters import Masters
from practicum.policy.train.surrogate import PolicyPass, run_policy_pass
from practicum.sampling import Completion, Sampling
from practicum.types import Message, Outcome, Segment, StopReason, Trajectory, WeightVersion
from practicum.verdicts import Verdict, VerifierId

VOCAB = 64
VERIFIER = VerifierId("test", "1", "0")
CLIP = Clip(0.2, 0.28)
L_MAX = 10


def small_model(
    seed: int = 0, dtype: torch.dtype = torch.float64, *, tied: bool = True
) -> Transformer:
    """Two layers, hidden size 32; weights large enough that predictions are far from uniform."""
    shape = Shape(
        vocab_size=VOCAB,
        hidden_size=32,
        num_heads=4,
        num_kv_heads=2,
        head_size=8,
        intermediate_size=48,
        context_length=128,
        tied_head=tied,
        layers=(LayerShape(), LayerShape()),
        rotaries=(Rotary((1.0, 0.3, 0.1, 0.03)),),
        norms=Norms(1e-5),
    )
    model = Transformer(shape, dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * 0.15 if parameter.ndim == 2 else 1.0 + 0.1 * noise)
    return model


class LocalPolicy:
    """The least that a trainer needs of a policy: a lock, a version, and what was published."""

    name = "local"
    context_length = 128

    def __init__(self, version: int = 0) -> None:
        self.version = WeightVersion(version)
        self.lock = threading.RLock()
        self.published: list[int] = []

    def publish(self, version: WeightVersion) -> None:
        self.version = version
        self.published.append(version)

    def render(self, messages: Sequence[Message]) -> list[int]:
        raise NotImplementedError

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        raise NotImplementedError


def trajectory(
    group: int, sample: int, segments: Sequence[Segment], outcome: Outcome = Outcome.SCORED
) -> Trajectory:
    return Trajectory(
        id=f"{group}-{sample}",
        group_id=f"g{group}",
        task_id=f"t{group}",
        sample=sample,
        messages=(),
        segments=tuple(segments),
        stop_reason=StopReason.EOS,
        outcome=outcome,
    )


def verdict(reward: float) -> Verdict:
    return Verdict(score=reward, verifier=VERIFIER, scale="unbounded")


def random_step(
    seed: int, rewards: Sequence[Sequence[float]]
) -> tuple[list[Trajectory], dict[str, Verdict]]:
    """Groups with a common preamble, shared beginnings of answers, and answers of many lengths."""
    draw = random.Random(seed)
    preamble = [draw.randrange(VOCAB) for _ in range(5)]
    trajectories: list[Trajectory] = []
    verdicts: dict[str, Verdict] = {}
    for group, group_rewards in enumerate(rewards):
        prompt = preamble + [draw.randrange(VOCAB) for _ in range(draw.randrange(1, 4))]
        for sample, reward in enumerate(group_rewards):
            answer = [draw.randrange(3) for _ in range(draw.randrange(1, 8))]
            recorded = [-draw.random() * 6 for _ in answer]
            segment = Segment.of(prompt, answer, recorded, [0] * len(answer))
            trajectories.append(trajectory(group, sample, [segment]))
            verdicts[f"{group}-{sample}"] = verdict(reward)
    return trajectories, verdicts


def collect(
    model: Transformer,
    trajectories: Sequence[Trajectory],
    verdicts: dict[str, Verdict],
    algorithm: str,
    *,
    max_tokens: int = 10_000,
    from_recorded: bool = False,
    temperature: float = 1.0,
) -> tuple[PolicyPass, dict[str, Tensor], Batch]:
    """One pass of the real code: what it saw, and the gradient of each parameter.

    `from_recorded` takes the recorded log-probs as proximal, so that ratios are far from 1.
    """
    scored = score(trajectories, verdicts, ALGORITHMS[algorithm], L_MAX)
    batch = assemble(scored.groups)
    masters = Masters(model)
    seen = run_policy_pass(
        model,
        masters,
        batch,
        micro_batches(batch, max_tokens),
        temperature=temperature,
        algorithm=ALGORITHMS[algorithm],
        clip=CLIP,
        proximal=batch.behaviour if from_recorded else None,
    )
    gradients = {
        name: master.grad.clone()
        for name, master in masters.weights.items()
        if master.grad is not None
    }
    return seen, gradients, batch


def assert_equal_gradients(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    """To 1e-9 of the largest entry of each parameter's gradient."""
    assert left.keys() == right.keys()
    for name in left:
        scale = right[name].abs().max()
        assert scale > 0, f"{name} has no gradient: the comparison would be empty"
        assert (left[name] - right[name]).abs().max() < 1e-9 * scale, name


def flat_logprobs(
    model: Transformer, sequences: Sequence[Sequence[int]], temperature: float = 1.0
) -> Tensor:
    """log p(token t+1 | tokens up to t) for padded rows, [B, L - 1], in float64.

    The textbook decoder: shares nothing with the code under test but the parameters.
    """
    longest = max(len(s) for s in sequences)
    ids = torch.tensor([[*s, *[0] * (longest - len(s))] for s in sequences])
    weights = {name: parameter.double() for name, parameter in model.named_parameters()}
    shape = model.shape
    head = weights.get("untied_head", weights["embedding"])

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + shape.norms.eps).sqrt() * weight

    frequencies = torch.tensor(shape.rotaries[0].inverse_frequencies, dtype=torch.float32)
    angles = (torch.arange(longest).float()[:, None] * frequencies).repeat(1, 2)
    cos, sin = angles.double().cos(), angles.double().sin()

    def rotate(x: Tensor) -> Tensor:
        half = shape.head_size // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def heads(x: Tensor, count: int) -> Tensor:
        x = x.view(*x.shape[:2], count, shape.head_size).transpose(1, 2)
        return x.repeat_interleave(shape.num_heads // count, 1)

    future = torch.ones(longest, longest, dtype=torch.bool).triu(1)
    x = weights["embedding"][ids]
    for layer in range(shape.num_layers):
        w = {n.split(".")[-1]: t for n, t in weights.items() if n.startswith(f"layers.{layer}.")}
        qkv = norm(x, w["attention_norm"]) @ w["qkv"].T
        query_size, kv_size = (
            shape.num_heads * shape.head_size,
            shape.num_kv_heads * shape.head_size,
        )
        query, key, value = qkv.split((query_size, kv_size, kv_size), -1)
        query = rotate(heads(query, shape.num_heads))
        key = rotate(heads(key, shape.num_kv_heads))
        scores = query @ key.transpose(-1, -2) / shape.head_size**0.5
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ heads(
            value, shape.num_kv_heads
        )
        x = x + mixed.transpose(1, 2).flatten(2) @ w["output"].T
        gate, up = (norm(x, w["mlp_norm"]) @ w["gate_up"].T).chunk(2, -1)
        x = x + (F.silu(gate) * up) @ w["down"].T
    logits = norm(x, weights["norm"]) @ head.T / temperature
    return F.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
