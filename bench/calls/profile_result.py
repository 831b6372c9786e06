"""What `specbench profile` found: a table for each call, with a line for each kind of node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value


class Line(Value):
    """One part of a call: nodes of one kind, the time between nodes, or the time outside the session."""

    group: str
    name: str
    ops: tuple[str, ...]
    shape: tuple[int, int] | None
    nodes: int
    seconds: float
    bytes: int
    share: float
    bytes_per_second: float | None
    beyond_read_seconds: float


class CallProfile(Value):
    """Calls of `tokens` tokens after `cached`, with and without the profiler."""

    tokens: int
    cached: int
    seconds: float
    profiled_seconds: float
    profiler_over_plain: float
    profiler_seconds_per_node: float
    cheapest_node_seconds: float
    read_bytes: int
    read_bytes_per_second: float
    ideal_seconds: float
    share_of_read: float
    lines: tuple[Line, ...]
    trials_seconds: tuple[float, ...]
    trials_profiled_seconds: tuple[float, ...]

    @property
    def nodes(self) -> int:
        return sum(line.nodes for line in self.lines)


class ProfileResult(Result):
    """Where the time of a target's calls goes."""

    kind: ClassVar[str] = "profile"
    faster_if_less = ("profiled_seconds", "seconds")

    bundle: str
    threads: int
    weight_bytes: int
    read_bytes_per_second: float
    read_loop: str
    calls: tuple[CallProfile, ...]

    def sheets(self) -> Sequence[Sheet]:
        return [call_sheet(call, self) for call in self.calls]


def call_sheet(call: CallProfile, result: ProfileResult) -> Sheet:
    """Lines of profiled calls, and below them the calls without the profiler."""
    columns = (
        Column(f"{call.tokens} after {call.cached:,} cached"),
        Column("n x k"),
        Column("nodes", ","),
        Column("us a call", ",.0f", 1e6),
        Column("share", ".1%"),
        Column("GB/s", ".1f", 1e-9),
        Column("us beyond reading", ",.0f", 1e6),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            line.name,
            "{} x {}".format(*line.shape) if line.shape else None,
            line.nodes or None,
            line.seconds,
            line.share,
            line.bytes_per_second,
            line.beyond_read_seconds,
        )
        for line in call.lines
    ]
    for name, seconds in (("all", call.profiled_seconds), ("without the profiler", call.seconds)):
        beyond = seconds - call.ideal_seconds
        rows.append((name, None, call.nodes, seconds, None, call.read_bytes / seconds, beyond))
    read, ideal = call.read_bytes_per_second / 1e9, call.ideal_seconds * 1e6
    added, cheapest = call.profiler_seconds_per_node * 1e6, call.cheapest_node_seconds * 1e6
    notes = (
        f"Reading {call.read_bytes / 1e6:,.1f} MB at {read:.1f} GB/s takes {ideal:,.0f} us, "
        f"{call.share_of_read:.1%} of the call. The profiler adds {added:.1f} us a node; the cheapest node takes "
        f"{cheapest:.1f} us.",
    )
    return Sheet(f"{result.bundle}, {result.threads} threads", columns, tuple(rows), notes)
