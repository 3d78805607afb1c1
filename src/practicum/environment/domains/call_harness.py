"""The half of a code test that runs inside the sandbox, in one process with hostile code.

The one thing to know: it holds no secret worth stealing. It is told which calls to make, never what
they should return, and it ships plain values out; the comparison happens on the host. Standalone
(it travels as text to whatever `python3` the sandbox has), so it imports only the standard library.

Protocol: one JSON request on stdin; on stdout first `<nonce> ready`, before any hostile code runs,
then `<nonce> <report>`. Whatever the solution prints goes nowhere.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any, cast

MAX_VALUE_CHARACTERS = 2_000
MAX_DEPTH = 8


def main() -> None:
    request = json.loads(sys.stdin.buffer.read())
    channel, nonce = os.dup(1), request["nonce"]
    silence()
    # CPU time, unlike wall time, does not run faster on a busy machine.
    limit_s = request["cpu_limit_s"]
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))
    send(channel, nonce + " ready\n")
    report = run(request["source"], request["entry"], request["calls"])
    send(channel, nonce + " " + json.dumps(report) + "\n")
    os._exit(0)  # threads or exit handlers of the solution must not outlive the report


def silence() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def send(channel: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(channel, data) :]


def run(source: str, entry: str, calls: list[list[Any]]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "solution"}
    try:
        exec(compile(source, "solution.py", "exec"), names)  # noqa: S102 - we are in the sandbox
        function = names[entry]
    except BaseException as error:
        return {"broken": describe(error)}
    return {"outcomes": [call(function, arguments) for arguments in calls]}


def call(function: Any, arguments: list[Any]) -> dict[str, Any]:
    try:
        value = function(*arguments)
        check_plain(value, 0)
        if len(json.dumps(value, allow_nan=False)) > MAX_VALUE_CHARACTERS:
            raise ValueError("the value is too long")
    except BaseException as error:
        return {"error": describe(error)}
    return {"value": value}


def check_plain(value: Any, depth: int) -> None:
    """Exact built-in types only: no object with its own idea of equality leaves this process."""
    kind = cast(Any, type(value))
    if depth > MAX_DEPTH:
        raise TypeError("the value is nested too deeply")
    if kind is list:
        for item in value:
            check_plain(item, depth + 1)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError("a key is no string")
            check_plain(item, depth + 1)
    elif kind not in (int, float, str, bool, type(None)):
        raise TypeError("a value of type " + kind.__name__ + " is no plain value")


def describe(error: BaseException) -> str:
    return (type(error).__name__ + ": " + str(error))[:200]


if __name__ == "__main__":
    main()
