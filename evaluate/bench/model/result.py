"""What `specbench model` found."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.evaluate.bench.read_ceiling import PairedTimes
from mxspec.evaluate.result import Result
from mxspec.evaluate.sheet import SPREAD, Column, Sheet, Spread


class CallTimes(PairedTimes):
    """A call of `tokens` tokens after `cached`; over_one_token is its time over that of a call of one token."""

    tokens: int
    cached: int
    tokens_per_second: float
    bytes_per_second: float
    over_one_token: float


class ModelResult(Result):
    """A target's calls beside a plain read of its weights, and the cost of opening the target."""

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

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("tokens a call"),
            Column("ms", ".2f", 1e3),
            Column("tok/s", ".1f"),
            Column("GB/s", ".1f", 1e-9),
            Column("of a read", ".0%"),
            Column("over one token", ".2f"),
        )
        rows = tuple(
            (
                f"{call.tokens} after {call.cached:,} cached",
                Spread.of(call.seconds, call.seconds_quartiles),
                call.tokens_per_second,
                call.bytes_per_second,
                Spread.of(call.share_of_read, call.share_quartiles),
                call.over_one_token,
            )
            for call in self.calls
        )
        notes = (
            f"Weights {self.weight_bytes / 1e6:.0f} MB, a plain read {self.read_bytes_per_second / 1e9:.1f} GB/s, "
            f"opened in {self.load_seconds:.2f} s, anonymous memory {self.anonymous_bytes / 1e6:.0f} MB "
            f"({self.anonymous_share:.2f} of the weights file).",
            "Of a read: the share of a call that a plain read of the weights takes. Over one token: the time of the "
            "call over that of one token.",
            SPREAD,
        )
        return [Sheet(f"{self.bundle}, {self.threads} threads", columns, rows, notes)]
