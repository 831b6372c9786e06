"""The result of every verifier."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first `accepted` drafted tokens are kept, and `next_token` comes after them.

    `evaluated` counts the drafted tokens up to and including the first rejected one.
    """

    accepted: int
    evaluated: int
    next_token: int
