"""What `specbench profile` found: a table a call, a line for each kind of node."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Column, Table

from mxspec.evaluate.result import Result, Value


class Line(Value):
    """Nodes of one kind, what lies between nodes, or outside the session; seconds and bytes of one call."""

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
    """Calls of `tokens` tokens after `cached`, with the profiler and without."""

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

    bundle: str
    threads: int
    weight_bytes: int
    read_bytes_per_second: float
    read_loop: str
    calls: tuple[CallProfile, ...]

    def tables(self) -> Sequence[Table]:
        return [call_table(call, self) for call in self.calls]


def call_table(call: CallProfile, result: ProfileResult) -> Table:
    """Lines of profiled calls, and below them the calls without the profiler."""
    table = Table(
        Column(f"{call.tokens} after {call.cached:,} cached", overflow="fold"),
        "n x k",
        "nodes",
        "us a call",
        "share",
        "GB/s",
        "us beyond reading",
        title=call_title(call, result),
        title_justify="left",
    )
    for line in call.lines:
        table.add_row(
            line.name,
            "{} x {}".format(*line.shape) if line.shape else "",
            str(line.nodes or ""),
            f"{line.seconds * 1e6:,.1f}",
            f"{line.share:.1%}",
            f"{line.bytes_per_second / 1e9:.1f}" if line.bytes_per_second else "",
            f"{line.beyond_read_seconds * 1e6:,.1f}",
        )
    table.add_section()
    for name, seconds in (("all", call.profiled_seconds), ("without the profiler", call.seconds)):
        gigabytes = f"{call.read_bytes / seconds / 1e9:.1f}"
        beyond = f"{(seconds - call.ideal_seconds) * 1e6:,.1f}"
        table.add_row(name, "", str(call.nodes), f"{seconds * 1e6:,.1f}", "", gigabytes, beyond)
    return table


def call_title(call: CallProfile, result: ProfileResult) -> str:
    read, ideal = call.read_bytes_per_second / 1e9, call.ideal_seconds * 1e6
    added, cheapest = call.profiler_seconds_per_node * 1e6, call.cheapest_node_seconds * 1e6
    return (
        f"{result.bundle}, {result.threads} threads; reading {call.read_bytes / 1e6:,.1f} MB at {read:.1f} GB/s takes "
        f"{ideal:,.0f} us, {call.share_of_read:.1%} of the call; the profiler adds {added:.1f} us a node, "
        f"the cheapest node takes {cheapest:.1f} us"
    )
