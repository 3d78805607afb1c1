"""Our `Sampling` in vLLM's words, for its Python and its HTTP interface alike.

Every field is sent, the defaults too: a server fills what is missing from the model's
`generation_config.json`, and some of those set a top-k or a penalty.
"""

from __future__ import annotations

import json
from typing import Any

from practicum.policy.engine.adapters.limits import wire_seed
from practicum.policy.model.tokens import Tokens
from practicum.sampling import Constraint, Sampling


def vllm_sampling(sampling: Sampling, tokens: Tokens) -> dict[str, Any]:
    """The arguments of `vllm.SamplingParams`, and the JSON of `/inference/v1/generate`."""
    ends = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ends |= tokens.eos_ids
    words: dict[str, Any] = {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "seed": wire_seed(sampling.seed),
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(ends),
        "ignore_eos": sampling.ignore_eos,
        "top_k": sampling.top_k or -1,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logprobs": sampling.top_logprobs,  # 0: of the sampled token alone
        "detokenize": bool(sampling.stop),
    }
    if sampling.logit_bias:
        words["logit_bias"] = dict(sampling.logit_bias)
    if sampling.constraint is not None:
        words["structured_outputs"] = structured_outputs(sampling.constraint)
    return words


def structured_outputs(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case "json_schema":
            return {"json": constraint.text}
        case "regex":
            return {"regex": constraint.text}
        case "choice":
            return {"choice": json.loads(constraint.text)}
