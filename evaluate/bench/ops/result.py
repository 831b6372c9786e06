"""What `specbench ops` found: medians, and between which two values the middle half lies."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mxspec.evaluate.bench.read_ceiling import PairedTimes, Quartiles, spread
from mxspec.evaluate.result import Result

HEADS, KV_HEADS, HEAD_SIZE = 32, 4, 64  # of TinyLlama-1.1B


class ProductTimes(PairedTimes):
    """One product with packed weights, on one instruction set."""

    isa: str
    format: str
    activations: str
    rows: int
    bytes_per_second: float
    multiply_adds_per_second: float


class AttentionTimes(PairedTimes):
    """Attention of `rows` tokens after `cached`, on one instruction set; over_read: over reading the cache."""

    isa: str
    rows: int
    cached: int
    over_read: float
    over_read_quartiles: Quartiles


class OpsResult(Result):
    """Products of n x k weights, by format, activations, instruction set and rows; and attention."""

    threads: int
    n: int
    k: int
    read_bytes_per_second: float
    read_loops: dict[str, str]
    products: tuple[ProductTimes, ...]
    attention: tuple[AttentionTimes, ...]

    def tables(self) -> Sequence[Table]:
        return [products_table(self), attention_table(self)]


def products_table(result: OpsResult) -> Table:
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
            f"a[rows, {result.k}] x packed[{result.n}, {result.k}], {result.threads} threads; "
            f"a plain read: {result.read_bytes_per_second / 1e9:.1f} GB/s"
        ),
        title_justify="left",
    )
    for product in result.products:
        table.add_row(
            product.format,
            product.activations,
            product.isa,
            str(product.rows),
            spread(product.seconds, product.seconds_quartiles, 1e6, ".1f"),
            f"{product.bytes_per_second / 1e9:.2f}",
            spread(product.share_of_read, product.share_quartiles, 1, ".0%"),
            f"{product.multiply_adds_per_second / 1e9:.1f}",
        )
    return table


def attention_table(result: OpsResult) -> Table:
    table = Table(
        "attention",
        "rows",
        "us a call",
        "over reading the cache",
        title=f"{HEADS} heads, {KV_HEADS} of keys, of {HEAD_SIZE}; fp16 caches, alternating",
        title_justify="left",
    )
    for call in result.attention:
        table.add_row(
            call.isa,
            f"{call.rows} after {call.cached:,} cached",
            spread(call.seconds, call.seconds_quartiles, 1e6, ".1f"),
            spread(call.over_read, call.over_read_quartiles, 1, ".2f"),
        )
    return table
