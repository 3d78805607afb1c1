"""What a server says it serves."""

from __future__ import annotations

from practicum.errors import UsageError, did_you_mean
from practicum.policy.engine.adapters.connection import Connection, Json


async def first_model(connection: Connection, name: str | None = None) -> Json:
    """The entry of `/v1/models` called `name`, or the first: adapters are listed after the base.

    Raises UsageError if there is no such model.
    """
    answer = await connection.get("/v1/models")
    entries: list[Json] = answer.get("data") or []
    by_name = {str(entry["id"]): entry for entry in entries}
    if not entries:
        raise UsageError(f"the server at {connection.url} serves no model")
    if name is None:
        return entries[0]
    if name not in by_name:
        raise UsageError(
            f"the server at {connection.url} has no model {name!r}.{did_you_mean(name, by_name)}"
        )
    return by_name[name]
