"""Public fakes: test domains, recipes and loops as Practicum tests itself, without torch."""

from practicum.testing.policy import FakePolicy
from practicum.testing.sandbox import FakeSandbox, FakeSandboxPool
from practicum.testing.streaming import FakeStreamingPolicy
from practicum.testing.trainer import FakeTrainer

__all__ = ["FakePolicy", "FakeSandbox", "FakeSandboxPool", "FakeStreamingPolicy", "FakeTrainer"]
