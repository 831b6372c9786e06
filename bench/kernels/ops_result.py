"""What `specbench ops` found: medians and quartiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from mxspec.evaluate.bench.harness import Quartiles
from mxspec.evaluate.bench.machine import PairedTimes
from mxspec.evaluate.result import SPREAD, Column, Result, Sheet, Spread

HEADS, KV_HEADS, HEAD_SIZE = 32, 4, 64  # of TinyLlama-1.1B
MICROSECONDS = Column("us a call", ".0f", 1e6)


class ProductTimes(PairedTimes):
    """One product with packed weights, on one instruction set."""

    isa: str
    format: str
    activations: str
    rows: int
    bytes_per_second: float
    multiply_adds_per_second: float


class AttentionTimes(PairedTimes):
    """Attention of `rows` tokens after `cached` on one instruction set; over_read is its time over that of a read."""

    isa: str
    rows: int
    cached: int
    over_read: float
    over_read_quartiles: Quartiles


class ExpertsTimes(PairedTimes):
    """The experts of a mixture's layer: medians over calls of the distinct experts and bytes that a call touches."""

    layer: str
    isa: str
    format: str
    activations: str
    rows: int
    experts: float
    bytes: float
    bytes_per_second: float
    multiply_adds_per_second: float


class OpsResult(Result):
    """Products of n x k weights by format, activations, instruction set and rows; attention; experts."""

    kind: ClassVar[str] = "ops"
    faster_if_more = ("share_of_read",)
    faster_if_less = ("seconds",)

    threads: int
    n: int
    k: int
    read_bytes_per_second: float
    read_loops: dict[str, str]
    products: tuple[ProductTimes, ...]
    attention: tuple[AttentionTimes, ...]
    experts: tuple[ExpertsTimes, ...] = ()

    def sheets(self) -> Sequence[Sheet]:
        """For each instruction set: times of the products, their rates, attention, and experts in the same way."""
        found = [*(p.isa for p in self.products), *(a.isa for a in self.attention), *(e.isa for e in self.experts)]
        isas = dict.fromkeys(found)
        return [
            sheet
            for isa in isas
            for sheet in (*products_sheets(self, isa), attention_sheet(self, isa), *experts_sheets(self, isa))
            if sheet.rows
        ]


def products_sheets(result: OpsResult, isa: str) -> tuple[Sheet, Sheet]:
    """A row for each format and kind of activations, a column for each number of rows."""
    products = {(p.format, p.activations, p.rows): p for p in result.products if p.isa == isa}
    counts = dict.fromkeys(rows for _, _, rows in products)
    names = dict.fromkeys((weights, activations) for weights, activations, _ in products)
    shape = f"a[rows, {result.k}] x packed[{result.n}, {result.k}], {isa}, {result.threads} threads"
    columns = (*map(Column, ("weights", "activations")), *(Column(f"{m} row{'s' * (m > 1)}") for m in counts))

    def rows(cell: Callable[[ProductTimes], str]) -> tuple[tuple[str, ...], ...]:
        return tuple((*name, *(cell(p) if (p := products.get((*name, m))) else "" for m in counts)) for name in names)

    read = f"A plain read gives {result.read_bytes_per_second / 1e9:.1f} GB/s."
    times = rows(lambda p: f"{MICROSECONDS.text(Spread.of(p.seconds, p.seconds_quartiles))} ({p.share_of_read:.0%})")
    rates = rows(lambda p: f"{p.bytes_per_second / 1e9:.1f} / {p.multiply_adds_per_second / 1e9:.0f}")
    title = f"microseconds a call (and the share of it that a plain read of the weights takes): {shape}"
    return (
        Sheet(title, columns, times, (read, SPREAD), keys=2),
        Sheet(f"GB/s of weights / billion multiply-adds a second: {shape}", columns, rates, keys=2),
    )


def attention_sheet(result: OpsResult, isa: str) -> Sheet:
    columns = (Column("rows"), MICROSECONDS, Column("over reading the cache", ".2f"))
    rows = tuple(
        (
            f"{call.rows} after {call.cached:,} cached",
            Spread.of(call.seconds, call.seconds_quartiles),
            Spread.of(call.over_read, call.over_read_quartiles),
        )
        for call in result.attention
        if call.isa == isa
    )
    heads = f"{HEADS} heads, {KV_HEADS} of keys, of {HEAD_SIZE}; fp16 caches"
    return Sheet(f"attention, {heads}; {isa}, {result.threads} threads", columns, rows, (SPREAD,))


def experts_sheets(result: OpsResult, isa: str) -> tuple[Sheet, Sheet]:
    """A row for each layer, format and kind of activations, a column for each number of rows."""
    experts = {(e.layer, e.format, e.activations, e.rows): e for e in result.experts if e.isa == isa}
    counts = dict.fromkeys(key[-1] for key in experts)
    names = dict.fromkeys(key[:3] for key in experts)
    columns = (*map(Column, ("layer", "weights", "activations")), *(Column(f"{m} row{'s' * (m > 1)}") for m in counts))

    def rows(cell: Callable[[ExpertsTimes], str]) -> tuple[tuple[str, ...], ...]:
        return tuple((*name, *(cell(e) if (e := experts.get((*name, m))) else "" for m in counts)) for name in names)

    times = rows(lambda e: f"{MICROSECONDS.text(Spread.of(e.seconds, e.seconds_quartiles))} ({e.share_of_read:.0%})")
    touched = rows(
        lambda e: (
            f"{e.experts:.0f} / {e.bytes / 1e6:.0f} / {e.bytes_per_second / 1e9:.1f} / "
            f"{e.multiply_adds_per_second / 1e9:.0f}"
        )
    )
    on = f"{isa}, {result.threads} threads"
    title = f"experts, each row's drawn evenly: microseconds a call (share of it that reading their bytes takes); {on}"
    return (
        Sheet(title, columns, times, (SPREAD,), keys=3),
        Sheet(f"experts / MB touched / GB/s / billion multiply-adds a second: {on}", columns, touched, keys=3),
    )
