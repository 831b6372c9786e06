"""What `specbench model` found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from mxspec.evaluate.bench.read_ceiling import PairedTimes, spread
from mxspec.evaluate.result import Result


class CallTimes(PairedTimes):
    """A call of `tokens` tokens after `cached`; over_one_token: over a call of one token after as many."""

    tokens: int
    cached: int
    tokens_per_second: float
    bytes_per_second: float
    over_one_token: float


class ModelResult(Result):
    """A target's calls, beside a plain read of its weights; and what opening it took."""

    bundle: str
    threads: int
    weight_bytes: int
    weights_file_bytes: int
    read_bytes_per_second: float
    read_loop: str
    load_seconds: float
    anonymous_bytes: int
    anonymous_share: float
    calls: tuple[CallTimes, ...]

    def tables(self) -> Sequence[Table]:
        table = Table(
            "tokens a call",
            "ms",
            "tok/s",
            "GB/s",
            "of a read",
            "over one token",
            title=(
                f"{self.bundle}, {self.threads} threads; weights {self.weight_bytes / 1e6:.0f} MB, a plain read "
                f"{self.read_bytes_per_second / 1e9:.1f} GB/s, load {self.load_seconds:.2f} s, anonymous memory "
                f"{self.anonymous_bytes / 1e6:.0f} MB ({self.anonymous_share:.2f} of the weights file)"
            ),
            title_justify="left",
        )
        for call in self.calls:
            table.add_row(
                f"{call.tokens} after {call.cached:,} cached",
                spread(call.seconds, call.seconds_quartiles, 1e3, ".2f"),
                f"{call.tokens_per_second:.1f}",
                f"{call.bytes_per_second / 1e9:.2f}",
                spread(call.share_of_read, call.share_quartiles, 1, ".0%"),
                f"{call.over_one_token:.2f}",
            )
        return [table]
