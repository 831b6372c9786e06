"""The tables of `specbench profile`: one a call, a line for each kind of node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Column, Table


def call_table(call: Mapping[str, Any], result: Mapping[str, Any]) -> Table:
    """Where the time of one call goes: lines of profiled calls, and below them the calls without the profiler."""
    table = Table(
        Column(f"{call['tokens']} after {call['cached']:,} cached", overflow="fold"),
        "n x k",
        "nodes",
        "us a call",
        "share",
        "GB/s",
        "us beyond reading",
        title=call_title(call, result),
        title_justify="left",
    )
    for line in call["lines"]:
        table.add_row(
            line["name"],
            "{} x {}".format(*line["shape"]) if line["shape"] else "",
            str(line["nodes"] or ""),
            f"{line['seconds'] * 1e6:,.1f}",
            f"{line['share']:.1%}",
            f"{line['bytes_per_second'] / 1e9:.1f}" if line["bytes_per_second"] else "",
            f"{line['beyond_read_seconds'] * 1e6:,.1f}",
        )
    table.add_section()
    nodes = str(sum(line["nodes"] for line in call["lines"]))
    for name, key in (("all", "profiled_seconds"), ("without the profiler", "seconds")):
        seconds = call[key]
        gigabytes = f"{call['read_bytes'] / seconds / 1e9:.1f}"
        beyond = f"{(seconds - call['ideal_seconds']) * 1e6:,.1f}"
        table.add_row(name, "", nodes, f"{seconds * 1e6:,.1f}", "", gigabytes, beyond)
    return table


def call_title(call: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    read, ideal = call["read_bytes_per_second"] / 1e9, call["ideal_seconds"] * 1e6
    added, cheapest = call["profiler_seconds_per_node"] * 1e6, call["cheapest_node_seconds"] * 1e6
    return (
        f"{result['threads']} threads; reading {call['read_bytes'] / 1e6:,.1f} MB at {read:.1f} GB/s takes "
        f"{ideal:,.0f} us, {call['share_of_read']:.1%} of the call; the profiler adds {added:.1f} us a node, "
        f"the cheapest node takes {cheapest:.1f} us"
    )
