"""What `specbench caches` found."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.evaluate.bench.medians import Quartiles
from mxspec.evaluate.bench.read_ceiling import PairedTimes
from mxspec.evaluate.result import Result
from mxspec.evaluate.sheet import SPREAD, Column, Sheet, Spread
from mxspec.formats.caches import CacheKind


class CacheTimes(PairedTimes):
    """Calls of `tokens` tokens after `cached`; over_first is the ratio of the first kind's time to theirs.

    The read is of the matrices and of the keys and values of the cached tokens.
    """

    kind: CacheKind
    tokens: int
    cached: int
    cache_bytes: int
    over_first: float
    over_first_quartiles: Quartiles


class CachesResult(Result):
    """Calls of one shape with each kind of caches, alternating."""

    shape: str
    format: str
    activations: str
    threads: int
    weight_bytes: int
    calls: tuple[CacheTimes, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("caches"),
            Column("tokens a call", ","),
            Column("cached", ","),
            Column("caches, MB", ",.0f", 1e-6),
            Column("ms a call", ".1f", 1e3),
            Column("share of a read", ".0%"),
            Column(f"speed over {self.calls[0].kind}", ".2f"),
        )
        rows = tuple(
            (
                call.kind,
                call.tokens,
                call.cached,
                call.cache_bytes,
                Spread.of(call.seconds, call.seconds_quartiles),
                Spread.of(call.share_of_read, call.share_quartiles),
                Spread.of(call.over_first, call.over_first_quartiles),
            )
            for call in self.calls
        )
        title = (
            f"{self.shape}'s shape, {self.format}, {self.activations}, {self.threads} threads, "
            f"{self.weight_bytes / 1e6:,.0f} MB of matrices a step"
        )
        note = "The read is of matrices and caches. The speed is that of calls in the same turn."
        return [Sheet(title, columns, rows, (note, SPREAD))]
