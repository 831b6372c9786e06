"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass

from mxspec.serve.http.errors import wrong

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits beyond which a request is refused or aborted."""

    queue: int = 64  # texts of a model that may wait for a slot
    body_bytes: int = 4 * MIB
    time_seconds: float = 600.0  # for a request, waiting included
    stall_seconds: float = 20.0  # for a client to read what is sent, and to send its body
    n: int = 16  # texts of a prompt, those of best_of included
    prompts: int = 64  # prompts of one request
    connections: int = 1024
    grace_seconds: float = 30.0  # after SIGTERM


def check_count(name: str, count: int, limit: int) -> None:
    """Raise ApiError where a request asks for more than the limit."""
    if count > limit:
        raise wrong(name, f"got {count}, expected at most {limit}")
