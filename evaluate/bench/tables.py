"""The tables of `specbench ops` and `specbench model`: medians, and between which two values the middle half lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from mxspec.evaluate.bench.ops import HEAD_SIZE, HEADS, KV_HEADS


def products_table(result: Mapping[str, Any]) -> Table:
    table = Table(
        "format",
        "activations",
        "instructions",
        "rows",
        "us a call",
        "GB/s",
        "of a read",
        "G multiply-adds/s",
        title=(
            f"a[rows, {result['k']}] x packed[{result['n']}, {result['k']}], {result['threads']} threads; "
            f"a plain read: {result['read_bytes_per_second'] / 1e9:.1f} GB/s"
        ),
        title_justify="left",
    )
    for row in result["products"]:
        table.add_row(
            row["format"],
            row["activations"],
            row["isa"],
            str(row["rows"]),
            spread(row["seconds"], row["seconds_quartiles"], 1e6, ".1f"),
            f"{row['bytes_per_second'] / 1e9:.2f}",
            spread(row["share_of_read"], row["share_quartiles"], 1, ".0%"),
            f"{row['multiply_adds_per_second'] / 1e9:.1f}",
        )
    return table


def attention_table(result: Mapping[str, Any]) -> Table:
    table = Table(
        "attention",
        "rows",
        "cached",
        "us a call",
        "over reading the cache",
        title=f"{HEADS} heads, {KV_HEADS} of keys, of {HEAD_SIZE}; fp16 caches, alternating",
        title_justify="left",
    )
    for row in result["attention"]:
        table.add_row(
            row["isa"],
            str(row["rows"]),
            str(row["cached"]),
            spread(row["seconds"], row["seconds_quartiles"], 1e6, ".1f"),
            spread(row["over_read"], row["over_read_quartiles"], 1, ".2f"),
        )
    return table


def model_table(name: str, result: Mapping[str, Any]) -> Table:
    table = Table(
        "tokens a call",
        "cached",
        "ms",
        "tok/s",
        "GB/s",
        "of a read",
        "over S = 1",
        title=(
            f"{name}, {result['threads']} threads; weights {result['weight_bytes'] / 1e6:.0f} MB, a plain read "
            f"{result['read_bytes_per_second'] / 1e9:.1f} GB/s, load {result['load_seconds']:.2f} s, anonymous memory "
            f"{result['anonymous_bytes'] / 1e6:.0f} MB ({result['anonymous_share']:.2f} of the weights file)"
        ),
        title_justify="left",
    )
    for row in result["calls"]:
        table.add_row(
            str(row["tokens"]),
            str(row["cached"]),
            spread(row["seconds"], row["seconds_quartiles"], 1e3, ".2f"),
            f"{row['tokens_per_second']:.1f}",
            f"{row['bytes_per_second'] / 1e9:.2f}",
            spread(row["share_of_read"], row["share_quartiles"], 1, ".0%"),
            f"{row['over_one_token']:.2f}",
        )
    return table


def spread(median: float, quartiles: Sequence[float], unit: float, form: str) -> str:
    """`142.3 (138.0 to 150.9)`."""
    low, high = quartiles
    return f"{median * unit:{form}} ({low * unit:{form}} to {high * unit:{form}})"
