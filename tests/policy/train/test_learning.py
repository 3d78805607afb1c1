"""The whole trainer on a problem small enough to win in a second."""

import pytest
import torch

from practicum.config import TrainConfig
from practicum.policy.model.forest import plant
from practicum.policy.model.transformer import Transformer
from practicum.policy.train.recompute import hidden_states
from practicum.policy.train.trainer import RLTrainer
from practicum.protocols import Metrics
from practicum.types import Segment, Trajectory
from practicum.verdicts import Verdict

from .models import LocalPolicy, small_model, trajectory, verdict

PROMPTS = ([1, 2], [1, 3], [4])
LENGTH = 2
GROUP_SIZE = 8


def sample(
    model: Transformer, prompt: list[int], generator: torch.Generator
) -> tuple[list[int], list[float]]:
    ids, logprobs = list(prompt), list[float]()
    for _ in range(LENGTH):
        with torch.no_grad():
            log_p = model.logits(hidden_states(model, plant([ids])))[-1].log_softmax(-1)
        token = int(torch.multinomial(log_p.exp(), 1, generator=generator))
        ids.append(token)
        logprobs.append(float(log_p[token]))
    return ids[len(prompt) :], logprobs


def rollout(
    model: Transformer, version: int, generator: torch.Generator
) -> tuple[list[Trajectory], dict[str, Verdict]]:
    """Every answer is worth its share of even tokens."""
    trajectories: list[Trajectory] = []
    verdicts: dict[str, Verdict] = {}
    for group, prompt in enumerate(PROMPTS):
        for index in range(GROUP_SIZE):
            answer, logprobs = sample(model, prompt, generator)
            segment = Segment.of(prompt, answer, logprobs, [version] * LENGTH)
            trajectories.append(trajectory(group, index, [segment]))
            verdicts[f"{group}-{index}"] = verdict(sum(t % 2 == 0 for t in answer) / LENGTH)
    return trajectories, verdicts


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo"])
def test_reward_rises(algorithm: str, dtype: torch.dtype) -> None:
    model, policy = small_model(0, dtype), LocalPolicy()
    generator = torch.Generator().manual_seed(0)
    config = TrainConfig.model_validate(
        {"algorithm": algorithm, "learning_rate": 0.01, "warmup_steps": 2}
    )
    trainer = RLTrainer(model, config, temperature=1.0, max_response_tokens=LENGTH)
    rewards: list[float] = []
    history: list[Metrics] = []
    for _ in range(25):
        trajectories, verdicts = rollout(model, trainer.version, generator)
        rewards.append(sum(v.reward for v in verdicts.values()) / len(verdicts))
        history.append(trainer.update(policy, None, trajectories, verdicts))
    assert sum(rewards[:3]) / 3 < 0.65
    assert sum(rewards[-3:]) / 3 > 0.95
    exact = 1e-5 if dtype == torch.float32 else 0.05
    assert all(metrics["train/logprob_gap"] < exact for metrics in history)
    assert history[-1]["train/entropy"] < history[0]["train/entropy"]
