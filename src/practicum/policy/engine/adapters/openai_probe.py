"""What an OpenAI-compatible server tells of its tokens, found out with one-token requests."""

from __future__ import annotations

from collections.abc import Mapping

from practicum.errors import InfraError
from practicum.policy.engine.adapters.connection import Connection, Json

COMPLETIONS = "/v1/completions"


async def why_opaque(connection: Connection, model: str) -> str | None:
    """Why the server's completions say too little to be trained on; None if they say enough."""
    body: Json = {
        "model": model,
        "prompt": [0],
        "max_tokens": 1,
        "return_token_ids": True,
        "logprobs": 0,
    }
    choice = only_choice(await connection.post(COMPLETIONS, body))
    if not choice.get("token_ids"):
        return "it does not return the token ids that it samples"
    if choice.get("prompt_token_ids") not in (None, [0]):
        return "it does not take prompts as token ids"
    if not (choice.get("logprobs") or {}).get("token_logprobs"):
        return "it does not return the log-probs of what it samples"
    return None


async def likeliest(
    connection: Connection, model: str, temperature: float
) -> Mapping[int | str, float]:
    """The likeliest first tokens after a fixed prompt; see `exactness.Ask`."""
    body: Json = {
        "model": model,
        "prompt": [0],
        "max_tokens": 1,
        "temperature": temperature,
        "top_p": 1,
        "logprobs": 5,
    }
    choice = only_choice(await connection.post(COMPLETIONS, body))
    return choice["logprobs"]["top_logprobs"][0]


def only_choice(answer: Json) -> Json:
    choices: list[Json] = answer.get("choices") or []
    if len(choices) != 1:
        raise InfraError(f"asked for one completion, the server returned {len(choices)}")
    return choices[0]
