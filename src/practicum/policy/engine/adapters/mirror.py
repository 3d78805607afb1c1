"""An engine elsewhere, kept equal to a model that is trained here.

`RLTrainer` changes a model and says so with `publish`. A `Mirror` then writes the model into a
folder that the engine can read and has it loaded, and it refuses samples that cannot be trained on.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from practicum.errors import UsageError
from practicum.policy.engine.adapters.home import Home
from practicum.policy.engine.adapters.remote import RemotePolicy
from practicum.sampling import Completion, Sampling
from practicum.types import Message, WeightVersion


class Mirror:
    """Satisfies `protocols.Policy` on any event loop, and `Publisher` of the trainer.

    Example:
        home = Home()
        engine = home.run(VllmPolicy.start(folder))
        write = partial(save_transformer, model, source=folder, dtype=torch.bfloat16)
        policy = Mirror(engine, write, home)
    """

    def __init__(
        self,
        engine: RemotePolicy,
        write: Callable[[Path], None],
        home: Home,
        exchange: Path | None = None,
    ) -> None:
        """`home` is where the engine was made.

        `write` puts the model into a folder that is there already, in Hugging Face form.
        `exchange` is where such folders are made: one that the engine can read, best in memory.
        """
        memory = Path("/dev/shm")
        self.engine = engine
        self.lock = threading.RLock()
        self._write = write
        self._home = home
        self._exchange = exchange or (memory if memory.is_dir() else Path(tempfile.gettempdir()))

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def version(self) -> WeightVersion:
        return self.engine.version

    @property
    def context_length(self) -> int:
        return self.engine.context_length

    def render(self, messages: Sequence[Message]) -> list[int]:
        return self.engine.render(messages)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
        """As the engine's own, but raises UsageError for what cannot be trained on."""
        reason = self.engine.why_not_trainable(sampling)
        if reason is not None:
            raise UsageError(f"{self.name} cannot be trained with this sampling: {reason}")
        return await self._home.call(self.engine.generate(prompt_ids, sampling))

    def publish(self, version: WeightVersion) -> None:
        """Give the engine the model as it is now; blocks until it has taken it."""
        with tempfile.TemporaryDirectory(prefix="practicum-weights-", dir=self._exchange) as made:
            parent = Path(made)
            parent.chmod(0o755)  # the engine may be another user's
            folder = parent / f"version-{version}"
            folder.mkdir()
            self._write(folder)
            self._home.run(self.engine.update_weights(folder, version))

    def close(self) -> None:
        """Let go of the engine. Idempotent."""
        self._home.run(self.engine.close())
