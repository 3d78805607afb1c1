"""`practicum serve MODEL`: a model on this machine behind OpenAI's API.

It stands on `endpoint`, which serves any policy, and on the engine, which batches what it is asked.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from practicum.endpoint import bind, make_app, serve
from practicum.endpoint.server import address_of
from practicum.endpoint.workers import any_busy
from practicum.policy.engine.engine import Engine
from practicum.policy.engine.options import EngineOptions
from practicum.policy.model.hub import find_model
from practicum.policy.model.tokens import Tokens
from practicum.policy.model.weights import load_transformer
from practicum.sampling import Sampling

Dtype = Literal["bfloat16", "float32"]


def serve_model(
    model: str,
    *,
    host: str,
    port: int,
    api_key: str | None,
    served_as: str | None,
    dtype: Dtype,
    options: EngineOptions,
    grace_s: float,
) -> None:
    """Load a model and serve it until asked to stop. Raises UsageError before it loads anything.

    `model` is a known name or a folder; clients call it `served_as`, or else by the last part of
    its name.
    """
    console = Console(soft_wrap=True, highlight=False)
    listening = bind(host, port, has_key=api_key is not None)
    with listening:
        folder, name = find_model(model)
        model_id = served_as or Path(model).resolve().name
        console.print(f"loading {name}")
        transformer = load_transformer(folder, getattr(torch, dtype))
        engine = Engine(transformer, Tokens(folder), name=name, options=options)
        gc.collect()
        gc.freeze()  # what is loaded stays; looking through it again would hold up a step
        try:
            app = make_app(engine, model_id=model_id, api_key=api_key)

            async def run() -> None:
                await engine.generate([0], Sampling(max_new_tokens=1))  # it works, and is warm
                console.print(f"serving {model_id} at {address_of(listening)}/v1 (Ctrl-C stops it)")
                await serve(app, listening, grace_s=grace_s)

            asyncio.run(run())
        finally:
            engine.close()
    console.print("stopped")
    if any_busy():  # a template that does not end; as the interpreter ends, it could still crash
        sys.stdout.flush()
        os._exit(0)
