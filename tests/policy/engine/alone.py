"""The plain reference: one request at a time, on pages of its own, and after its prompt one token.

No batch, no sharing, no queue, no speculation. What it takes over from the engine under test is
nothing but which weights computed each token. `small` is the model that both run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Seq
from pathlib import Path

import torch

from practicum.policy.engine.constraint import Grammars
from practicum.policy.engine.draw import Draw, draw
from practicum.policy.engine.ending import Ending
from practicum.policy.engine.kv_policy import KvPolicy
from practicum.policy.engine.penalties import seen_for
from practicum.policy.engine.runner import Runner
from practicum.policy.engine.sequence import Sequence
from practicum.policy.engine.step import Run, Step
from practicum.policy.engine.uniforms import uniforms
from practicum.policy.model.family import shape_from_config
from practicum.policy.model.head import distribution
from practicum.policy.model.paged import PAGE
from practicum.policy.model.tiny import tiny_config, write_tiny
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.transformer import Transformer
from practicum.sampling import Completion, Sampling

CONTEXT = 256


def small_tokens(folder: Path) -> Tokens:
    """The byte tokenizer."""
    write_tiny(folder, config=tiny_config(hidden_size=192, num_layers=1, context_length=32))
    return Tokens(folder)


def small(dtype: torch.dtype, version: int = 0, context: int = CONTEXT) -> Transformer:
    """Of sizes for which there are kernels; each version has weights of its own."""
    config: dict[str, object] = {
        "model_type": "llama",
        "vocab_size": 259,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
    }
    model = Transformer(shape_from_config(config), dtype)
    set_weights(model, version)
    return model


@torch.no_grad()
def set_weights(model: Transformer, version: int) -> None:
    """In place, like a trainer. Close to those of other versions, as after a step of one."""
    for number, parameter in enumerate(model.parameters()):
        common = _noise(parameter.shape, number)
        own = _noise(parameter.shape, 1000 * (version + 1) + number)
        scale = 0.2 if parameter.dim() == 1 else 2.0 * parameter.shape[-1] ** -0.5
        parameter.copy_((1.0 if parameter.dim() == 1 else 0.0) + scale * (common + 0.1 * own))


def _noise(shape: Seq[int], seed: int) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


class Alone:
    """Answers requests, knowing nothing of others."""

    def __init__(
        self,
        dtype: torch.dtype,
        tokens: Tokens,
        kv: KvPolicy = KvPolicy(),
        context: int = CONTEXT,
    ) -> None:
        self._context = context
        self._model = small(dtype, context=context)
        self._version = 0
        self._tokens = tokens
        self._grammars = Grammars(tokens, self._model.shape.vocab_size)
        self._runner = Runner(self._model, context // PAGE, kv=kv)

    @torch.inference_mode()
    def complete(self, prompt: Seq[int], sampling: Sampling, versions: Seq[int]) -> Completion:
        """The completion where token i is computed with the weights `versions[i]`."""
        constraint = sampling.constraint
        matcher = constraint and self._grammars.matcher(constraint, sampling.stop_token_ids)
        seen = seen_for(sampling, prompt)
        room = self._context - len(prompt)
        ending = Ending(sampling, self._tokens.eos_ids, self._tokens.decode, room, False)
        pages = array("i", range(self._context // PAGE))
        sequence = Sequence([], len(prompt), array("i", prompt), pages)
        found: list[tuple[int, float, int, float, tuple[tuple[int, float], ...]]] = []
        temperature = torch.tensor([sampling.temperature or 1.0], dtype=torch.float64)
        for first, count in _chunks(versions, len(prompt)):
            self._load(version := versions[first])
            hidden = self._runner.run(Step(runs=[Run(sequence, first, count, (), 1)]))
            if first + count < len(prompt):
                continue
            assert ending.reason is None, "it went on after its end"
            uniform = float(uniforms(sampling.seed, len(found) + 1)[-1])
            allowed = matcher and matcher.allowed()
            drawn = draw(
                distribution(hidden, self._model.head, temperature),
                [Draw(0, uniform, sampling, seen, allowed)],
            )
            (token_id,), (logprob,), (kept,) = drawn.token_ids, drawn.logprobs, drawn.log_kept_mass
            found.append((token_id, logprob, version, kept, drawn.top_logprobs[0]))
            ending.push(token_id)
            sequence.tokens.append(token_id)
            if seen is not None:
                seen.push(token_id)
            if matcher is not None:
                matcher.advance(token_id)
        assert ending.reason is not None, "it ended too early"
        token_ids, logprobs, sampled_by, kept_mass, top = zip(*found, strict=True)
        return Completion(
            token_ids, logprobs, sampled_by, ending.text, ending.reason,
            kept_mass if any(kept_mass) else (), top if sampling.top_logprobs else (),
        )  # fmt: skip

    def _load(self, version: int) -> None:
        if version != self._version:
            set_weights(self._model, version)
            self._version = version


def _chunks(versions: Seq[int], num_prompt: int) -> list[tuple[int, int]]:
    """First token and number of tokens of every step: the prompt whole where its weights allow."""
    places = range(len(versions))
    changes = {place for place in places[1:] if versions[place] != versions[place - 1]}
    starts = sorted({0, num_prompt - 1, *changes, *places[num_prompt:]})
    return [(a, b - a) for a, b in zip(starts, [*starts[1:], len(versions)], strict=True)]
