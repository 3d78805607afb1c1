"""A trainer that counts: its "weights" are a digest of everything it was ever trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from practicum.protocols import Metrics, Policy
from practicum.testing.policy import FakePolicy
from practicum.types import Trajectory, WeightVersion
from practicum.verdicts import Verdict


class FakeTrainer:
    """Satisfies `practicum.protocols.Trainer`. Equal digests: equal training, in equal order."""

    def __init__(self) -> None:
        self.version = WeightVersion(0)
        self.digest = ""
        self.trained: list[list[str]] = []
        """Trajectory ids of each step."""

    def update(
        self,
        policy: Policy,
        reference: Policy | None,
        trajectories: Sequence[Trajectory],
        rewards: Mapping[str, Verdict],
    ) -> Metrics:
        consumed = [t for t in trajectories if t.id in rewards]
        text = "\n".join(f"{t.id} {t.response} {rewards[t.id].reward}" for t in consumed)
        self.digest = hashlib.sha256((self.digest + text).encode()).hexdigest()
        self.trained.append([t.id for t in consumed])
        self.version = WeightVersion(self.version + 1)
        if isinstance(policy, FakePolicy):
            policy.publish(self.version)
        return {"train/loss": 0.0}

    def save(self, folder: Path) -> None:
        state = {"version": self.version, "digest": self.digest}
        (folder / "trainer.json").write_text(json.dumps(state))

    def load(self, folder: Path) -> None:
        state = json.loads((folder / "trainer.json").read_text())
        self.version = WeightVersion(state["version"])
        self.digest = state["digest"]
