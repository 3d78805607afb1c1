"""The `[engine]` section of a recipe: what samples completions, and how.

The one thing to know: a key that means nothing to the chosen kind is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_GB = 1024 * 1024
"""Most GiB for keys and values, far above what any machine has."""


class Section(BaseModel):
    """Base of every section of a recipe: unknown keys and other types are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class KvConfig(Section):
    """How our own engine keeps keys and values; all but the default change what it computes."""

    bits: Literal[16, 8, 4] = 16
    """16 keeps the model's dtype."""
    recent: int = Field(default=0, ge=0, multiple_of=128)
    """Positions before a token's own block of 128 that it reads exactly."""
    top_pages: int = Field(default=0, ge=0)
    """Most pages of 32 tokens read of those before; 0 is all."""
    window: int = Field(default=0, ge=0)
    """Tokens that a token sees, itself included; 0 leaves layers as the model has them."""
    sinks: int = Field(default=0, ge=0)
    """First tokens that stay visible beyond the window."""
    layers: tuple[int, ...] = Field(default=(), strict=False)
    """Those that `top_pages` and `window` apply to; none named is all."""

    @model_validator(mode="after")
    def _check(self) -> KvConfig:
        if self.window and self.top_pages:
            raise ValueError("choose a window or top_pages: within a window every page is read")
        if self.sinks and not self.window:
            raise ValueError("sinks stay visible beyond a window, but there is none; set window")
        if self.layers and not (self.window or self.top_pages):
            raise ValueError("layers says where a window or top_pages applies; set one of them")
        if self.recent and self.bits == 16 and not self.top_pages:
            raise ValueError("recent stays exact where bits or top_pages is set; set one of them")
        return self


Kind = Literal["own", "vllm", "vllm-server", "sglang-server", "openai-server"]
SERVERS = ("vllm-server", "sglang-server", "openai-server")
USED_BY: Mapping[str, tuple[Kind, ...]] = {
    **dict.fromkeys(("precision", "speculate", "rows", "cache_gb", "swap_gb", "kv"), ("own",)),
    **dict.fromkeys(("url", "api_key_env"), SERVERS),
    "options": ("vllm",),
    "exchange": ("vllm", "vllm-server", "sglang-server"),
}
"""Key of `EngineConfig` -> the kinds that it means something to."""


class EngineConfig(Section):
    """What samples completions. The trainer's weights are published to it after every step."""

    kind: Kind = "own"
    """`vllm` needs the extra of that name; `openai-server` takes no weights, so never trains."""
    precision: Literal["exact", "w8a8"] = "exact"
    """`w8a8` multiplies in 8 bits: faster, and log-probs are not those that the trainer finds."""
    speculate: bool = False
    """Guess tokens and verify several in one step; changes no token."""
    rows: int = Field(default=128, ge=1, le=4096)
    """Most completions that sample in one step."""
    cache_gb: float = Field(default=2.0, gt=0.0, le=MOST_GB)
    """GiB for keys and values."""
    swap_gb: float = Field(default=0.0, ge=0.0, le=MOST_GB)
    """GiB of host memory beside them, for those of earlier work."""
    kv: KvConfig = KvConfig()
    options: dict[str, Any] = Field(default={})
    """Of `vllm.AsyncEngineArgs`, such as `{ max_model_len = 4096 }`."""
    url: str = ""
    """Of the server, such as `http://127.0.0.1:8000`."""
    api_key_env: str = ""
    """Name of the environment variable that holds the server's key."""
    exchange: str = ""
    """Folder for new weights that the engine reads too; by default in this machine's memory."""

    @model_validator(mode="after")
    def _check(self) -> EngineConfig:
        for key, kinds in USED_BY.items():
            # By value: a written config holds every key.
            given = getattr(self, key) != EngineConfig.model_fields[key].default
            if given and self.kind not in kinds:
                raise ValueError(
                    f"{key} is for kind {' or '.join(map(repr, kinds))}, but kind is "
                    f"{self.kind!r}; leave one of them off"
                )
        if self.kind in SERVERS and not _is_address(self.url):
            raise ValueError(  # it may hold a password, so it is not repeated
                f"kind {self.kind!r} needs the url of a server, such as 'http://127.0.0.1:8000': "
                "http or https, a host, and where needed a port from 1 to 65535 and a path; "
                "spaces, ?, # and keys do not belong into it, see api_key_env"
            )
        if not re.fullmatch(r"([A-Za-z_]\w*)?", self.api_key_env):
            raise ValueError(
                "api_key_env is the name of an environment variable that holds the key, such as "
                "'SERVER_KEY', never the key itself"
            )
        return self


def _is_address(url: str) -> bool:
    """Whether it is `http(s)://host[:port][/path]` and nothing else, and can be asked."""
    if not re.fullmatch(r"https?://([\w.-]+|\[[\da-fA-F:.]+\])(:\d+)?(/[!-~]*)?", url, re.ASCII):
        return False
    if set("@?#\\") & set(url):
        return False
    import httpx  # takes long, and only servers need it

    try:
        parts = httpx.URL(url)
        parts.host.encode("idna")  # as the system will, to look it up
    except (httpx.InvalidURL, ValueError):
        return False
    return parts.port is None or 0 < parts.port < 1 << 16
