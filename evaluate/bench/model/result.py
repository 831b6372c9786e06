"""What `specbench model` found."""

from __future__ import annotations

from collections.abc import Sequence

from mxspec.evaluate.bench.read_ceiling import PairedTimes
from mxspec.evaluate.result import Result, Value
from mxspec.evaluate.sheet import SPREAD, Cell, Column, Sheet, Spread
from mxspec.formats.manifest import ModelEntry


class CallTimes(PairedTimes):
    """A call of `tokens` tokens after `cached`; over_one_token is its time over that of a call of one token."""

    tokens: int
    cached: int
    tokens_per_second: float
    bytes_per_second: float
    over_one_token: float


class Experts(Value):
    """The experts of a mixture in each layer, and how many of them a token chooses."""

    count: int
    chosen: int

    @classmethod
    def of(cls, entry: ModelEntry) -> Experts | None:
        return None if entry.experts is None else cls(count=entry.experts.count, chosen=entry.experts.chosen)


class ModelResult(Result):
    """A target's calls beside a plain read of the weights that they read, and the cost of opening the target.

    `weight_bytes` are those of the matrices that a call of one token reads. A call of more tokens reads more of the
    `experts` of a mixture: bytes_per_second times seconds.
    """

    bundle: str
    threads: int
    weight_bytes: int
    weights_file_bytes: int
    read_bytes_per_second: float
    read_loop: str
    load_seconds: float
    anonymous_bytes: int
    anonymous_share: float
    experts: Experts | None = None
    calls: tuple[CallTimes, ...]

    def sheets(self) -> Sequence[Sheet]:
        columns = (
            Column("tokens a call"),
            *([Column("MB read", ",.0f", 1e-6)] if self.experts else []),
            Column("ms", ".2f", 1e3),
            Column("tok/s", ".1f"),
            Column("GB/s", ".1f", 1e-9),
            Column("of a read", ".0%"),
            Column("over one token", ".2f"),
        )
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (
                f"{call.tokens} after {call.cached:,} cached",
                *self._read_by(call),
                Spread.of(call.seconds, call.seconds_quartiles),
                call.tokens_per_second,
                call.bytes_per_second,
                Spread.of(call.share_of_read, call.share_quartiles),
                call.over_one_token,
            )
            for call in self.calls
        )
        notes = (
            f"Weights {self.weight_bytes / 1e6:.0f} MB{self._of_one_token()}, "
            f"a plain read {self.read_bytes_per_second / 1e9:.1f} GB/s, "
            f"opened in {self.load_seconds:.2f} s, anonymous memory {self.anonymous_bytes / 1e6:.0f} MB "
            f"({self.anonymous_share:.2f} of the weights file).",
            "Of a read: the share of a call that a plain read of the weights takes. Over one token: the time of the "
            "call over that of one token.",
            SPREAD,
        )
        return [Sheet(f"{self.bundle}, {self.threads} threads", columns, rows, notes)]

    def _read_by(self, call: CallTimes) -> tuple[float, ...]:
        """The cell with the bytes that a call of a mixture reads."""
        return () if self.experts is None else (call.bytes_per_second * call.seconds,)

    def _of_one_token(self) -> str:
        """What one token reads of a mixture."""
        if self.experts is None:
            return ""
        chosen, count = self.experts.chosen, self.experts.count
        return (
            f" for one token, with {chosen} of {count} experts in each layer (for more tokens, those that the "
            "operators counted)"
        )
