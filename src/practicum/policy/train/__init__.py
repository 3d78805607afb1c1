"""From scored trajectories (or worked examples) to new weights."""

from practicum.policy.train.algorithms import ALGORITHMS, Algorithm
from practicum.policy.train.sft import SftExample, train_sft
from practicum.policy.train.trainer import RLTrainer

__all__ = ["ALGORITHMS", "Algorithm", "RLTrainer", "SftExample", "train_sft"]
