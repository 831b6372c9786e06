"""The result of `speccheck accuracy`, and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal

from mxspec.evaluate.accuracy.ranks import TensorError
from mxspec.evaluate.result import Cell, Column, Result, Sheet, Value
from mxspec.formats.weight_format import Activations

Verdict = Literal["passed", "failed", "too short"]
CONFIDENCE = 0.95


class Figures(Value):
    """One model compared with the fp16 baseline on the same tokens; a value that is not finite is null in JSON.

    `ratio` is the ratio of perplexities, with its confidence interval; divergences are KL(baseline || model) in nats a
    token. `not_finite_tokens` counts the tokens with a logit that is not finite. `matrix_bytes` are those of all
    matrices; older records lack it.
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
    matrix_bytes: int | None = None


class RefereeFigures(Value):
    """The fp16 baseline compared with transformers in float32: `ratio` is its perplexity over that of transformers."""

    checkpoint: str
    perplexity: float
    ratio: float
    most_off: float
    mean_kl_divergence: float
    passed: bool


class Accuracy(Figures, Result):
    """The target's figures, and how the text was read. `worst_at` is the place of the largest divergence.

    `origins` are the types of blocks that the checkpoint's matrices had been rounded to before.
    """

    kind: ClassVar[str] = "accuracy"

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
    origins: tuple[str, ...] = ()
    tensors: tuple[TensorError, ...]
    advice: tuple[str, ...]
    verdict: Verdict
    reasons: tuple[str, ...]
    passed: bool

    def sheets(self) -> list[Sheet]:
        """Tables of the target and, if there are any, of other formats, the worst tensors and advice."""
        sheets = [Sheet.of_figures("accuracy of the packed target", list(self._figures()), LEGEND)]
        if self.beside:
            sheets.append(formats_sheet("other formats of the same target", (self, *self.beside)))
        if self.tensors:
            rows = tuple(map(_tensor, self.tensors))
            sheets.append(Sheet("packed tensors furthest from the checkpoint", _TENSORS, rows))
        if self.advice:
            sheets.append(Sheet("what may help", (), (), self.advice, keys=0))
        return sheets

    def _figures(self) -> Iterator[tuple[str, str | None]]:
        yield "format", name_of(self)
        yield "rounded a second time, after", ", ".join(self.origins) or None
        lead = f" with {' '.join(self.windows_begin_with)} first" if self.windows_begin_with else ""
        yield "tokens scored", f"{self.tokens:,} of {self.documents:,} document{'' if self.documents == 1 else 's'}"
        yield "windows", f"{self.window:,} tokens{lead}, one every {self.stride:,} tokens"
        yield "files left out, not UTF-8", f"{self.skipped_files:,}" if self.skipped_files else None
        yield "perplexity, packed", _number(self.target_perplexity, 4)
        yield "perplexity, fp16", _number(self.baseline_perplexity, 4)
        if self.referee is not None:
            yield "perplexity, transformers in float32", _number(self.referee.perplexity, 4)
            yield f"fp16 over it (at most {self.referee.most_off:.1%} off 1)", _number(self.referee.ratio, 5)
        yield f"ratio, packed over fp16 (at most {self.max_ratio:g})", _number(self.ratio, 5)
        interval = f"{_number(self.ratio_low, 5)} to {_number(self.ratio_high, 5)}"
        yield f"{self.confidence:.0%} interval of the ratio", interval
        yield "ratio predicted", None if self.predicted_ratio is None else f"{self.predicted_ratio:.5f}"
        yield "mean KL divergence (nats)", _number(self.mean_kl_divergence, 6)
        yield "KL, 99th percentile", _number(self.kl_divergence_p99, 6)
        yield f"KL, worst ({self.worst_at})", _number(self.worst_kl_divergence, 6)
        yield "same top token", f"{self.same_top_share:.2%}"
        yield "verdict", self.verdict


LEGEND = (
    "Each token is scored once, in the first window that holds it. KL divergence: from the fp16 to the packed "
    "distribution of the next token. Same top token: how often both find the same token likeliest.",
)
FigureCell = tuple[Column, Callable[[Figures], Cell]]
_TENSORS = (Column("tensor"), Column("format"), Column("error"), Column("more MB in fp16", ".2f", 1e-6))


def formats_sheet(title: str, figures: Sequence[Figures]) -> Sheet:
    """A row for each format."""
    size: FigureCell = (Column("MB", ".1f", 1e-6), lambda each: each.matrix_bytes)
    columns: list[FigureCell] = [
        (Column("format"), name_of),
        *([] if any(each.matrix_bytes is None for each in figures) else [size]),
        (Column("perplexity", ".4f"), lambda each: each.target_perplexity),
        (Column("ratio", ".4f"), lambda each: each.ratio),
        (Column("±", ".4f"), lambda each: (each.ratio_high - each.ratio_low) / 2),
        (Column("KL (nats)", ".5f"), lambda each: each.mean_kl_divergence),
        (Column("KL, 99 %", ".4f"), lambda each: each.kl_divergence_p99),
        (Column("KL, worst", ".3f"), lambda each: each.worst_kl_divergence),
        (Column("same top token", ".1%"), lambda each: each.same_top_share),
    ]
    note = f"ratio: perplexity over that of fp16; ±: half of its {CONFIDENCE:.0%} interval."
    return Sheet.of_rows(title, figures, columns, (note, *LEGEND))


def _tensor(each: TensorError) -> tuple[Cell, ...]:
    loss = "" if each.predicted_loss is None else f", loses {each.predicted_loss:.1e} nats"
    return each.name, each.format, f"{each.error:.2%}{loss}", each.added_bytes


def name_of(each: Figures) -> str:
    """The format, with the type of the activations unless it is int16."""
    return each.format if each.activations == "int16" else f"{each.format}/{each.activations}"


def _number(value: float, digits: int) -> str:
    return Column("", f".{digits}f").text(value)
