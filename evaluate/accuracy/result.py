"""What `speccheck accuracy` found, and how it reads as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from rich.table import Table

from mxspec.evaluate.accuracy.interval import CONFIDENCE
from mxspec.evaluate.accuracy.ranks import TensorError
from mxspec.evaluate.result import Result, Value
from mxspec.formats.weight_format import Activations

Verdict = Literal["passed", "failed", "too short"]


class Figures(Value):
    """One model against the fp16 baseline on the same tokens; what is not finite is null in JSON.

    `ratio` is of the perplexities, with its confidence interval; divergences are KL(baseline || model) in nats a token.
    `not_finite_tokens` had a logit that is no number.
    """

    format: str
    activations: Activations
    target_perplexity: float
    ratio: float
    ratio_low: float
    ratio_high: float
    mean_kl_divergence: float
    kl_divergence_p99: float
    worst_kl_divergence: float
    same_top_share: float
    not_finite_tokens: int


class RefereeFigures(Value):
    """The fp16 baseline against transformers in float32: `ratio` is the baseline's perplexity over transformers'."""

    checkpoint: str
    perplexity: float
    ratio: float
    most_off: float
    mean_kl_divergence: float
    passed: bool


class Accuracy(Figures, Result):
    """The target, and how the text was read. `worst_at`: where in the text the divergence was worst."""

    bundle: str
    documents: int
    skipped_files: int
    tokens: int
    window: int
    stride: int
    windows_begin_with: tuple[str, ...]
    baseline_perplexity: float
    baseline_not_finite_tokens: int
    confidence: float = CONFIDENCE
    blocks: int
    predicted_ratio: float | None
    max_ratio: float
    worst_at: str
    beside: tuple[Figures, ...]
    referee: RefereeFigures | None
    tensors: tuple[TensorError, ...]
    advice: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[str, ...]
    passed: bool

    def tables(self) -> list[Table]:
        """The target; other formats, the worst tensors and advice where there are any."""
        tables = [_table("accuracy of the packed target", ("measure", "value"), self._rows())]
        if self.beside:
            tables.append(_table("other formats of the same target", _BESIDE, map(_beside, (self, *self.beside))))
        if self.tensors:
            tables.append(_table("packed tensors furthest from the checkpoint", _TENSORS, map(_tensor, self.tensors)))
        if self.advice:
            tables.append(_table("what may help", ("",), ((line,) for line in self.advice)))
        return tables

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "format", _name(self)
        lead = f" with {' '.join(self.windows_begin_with)} first" if self.windows_begin_with else ""
        yield "tokens scored", f"{self.tokens:,} of {_count(self.documents, 'document')}"
        yield "windows", f"{self.window:,} tokens{lead}, {self.stride:,} further each"
        if self.skipped_files:
            yield "files that are no UTF-8, left out", f"{self.skipped_files:,}"
        yield "perplexity, packed", _number(self.target_perplexity, 4)
        yield "perplexity, fp16", _number(self.baseline_perplexity, 4)
        if self.referee is not None:
            yield "perplexity, transformers in float32", _number(self.referee.perplexity, 4)
            yield f"fp16 over it (at most {self.referee.most_off:.1%} off)", _number(self.referee.ratio, 5)
        yield f"ratio (at most {self.max_ratio:g})", _number(self.ratio, 5)
        yield f"its {self.confidence:.0%} interval", f"{_number(self.ratio_low, 5)} to {_number(self.ratio_high, 5)}"
        if self.predicted_ratio is not None:
            yield "ratio predicted", f"{self.predicted_ratio:.5f}"
        yield "mean KL divergence (nats)", _number(self.mean_kl_divergence, 6)
        yield "KL, 99th percentile", _number(self.kl_divergence_p99, 6)
        yield f"KL, worst ({self.worst_at})", _number(self.worst_kl_divergence, 6)
        yield "same top token", f"{self.same_top_share:.2%}"
        yield "verdict", self.verdict


_BESIDE = ("format", "perplexity", "ratio", "±", "KL", "99%", "worst", "same top")
_TENSORS = ("tensor", "format", "error", "more MB in fp16")


def _beside(each: Figures) -> tuple[str, ...]:
    return (
        _name(each),
        _number(each.target_perplexity, 4),
        _number(each.ratio, 4),
        _number((each.ratio_high - each.ratio_low) / 2, 4),
        _number(each.mean_kl_divergence, 5),
        _number(each.kl_divergence_p99, 4),
        _number(each.worst_kl_divergence, 3),
        f"{each.same_top_share:.1%}",
    )


def _tensor(each: TensorError) -> tuple[str, ...]:
    loss = "" if each.predicted_loss is None else f", loses {each.predicted_loss:.1e} nats"
    return each.name, each.format, f"{each.error:.2%}{loss}", f"{each.added_bytes / 1e6:.2f}"


def _name(each: Figures) -> str:
    return each.format if each.activations == "int16" else f"{each.format}/{each.activations}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "not finite"


def _table(title: str, columns: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for index, column in enumerate(columns):
        narrow = column == "format"  # a name that is folded cannot be copied
        table.add_column(column, justify="right" if index else "left", overflow="fold", no_wrap=narrow)
    for row in rows:
        table.add_row(*row)
    return table
