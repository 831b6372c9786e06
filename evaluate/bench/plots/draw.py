"""The pictures of a record, and how they are written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mxspec.evaluate.accuracy.result import Accuracy
from mxspec.evaluate.bench.batch.result import BatchResult
from mxspec.evaluate.bench.columns.result import ColumnsResult
from mxspec.evaluate.bench.plots import accuracy, batch, columns, speculate, sweep
from mxspec.evaluate.bench.plots.style import require_matplotlib, save
from mxspec.evaluate.bench.records import Record
from mxspec.evaluate.bench.speculate.result import SpeculateResult
from mxspec.evaluate.bench.sweep.result import SweepResult
from mxspec.evaluate.result import Result
from mxspec.formats.errors import MxspecError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


DRAWN = (SweepResult, SpeculateResult, ColumnsResult, BatchResult, Accuracy)


def pictures_of(result: Result) -> dict[str, Callable[[Axes], None]]:
    """The pictures of a result by name; empty if it has none."""
    if isinstance(result, SweepResult):
        return sweep.pictures(result)
    if isinstance(result, SpeculateResult):
        return speculate.pictures(result)
    if isinstance(result, ColumnsResult):
        return {"columns": partial(columns.bars, result)}
    if isinstance(result, BatchResult):
        return {"batch": partial(batch.speed, result)}
    if isinstance(result, Accuracy) and result.beside and result.matrix_bytes:
        return {"accuracy": partial(accuracy.sizes, result)}
    return {}


def draw_all(record: Record, folder: Path, kinds: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Write every picture of a record as RECORD-PICTURE.png and .svg. Raises MxspecError if it has none."""
    require_matplotlib()
    pictures = pictures_of(record.result)
    if not pictures:
        known = "sweep, speculate, columns, batch, or accuracy with --format"
        raise MxspecError(f"{record.name}: no picture can be made of it; expected {known}")
    paths = [folder / f"{Path(record.name).stem}-{name}" for name in pictures]
    for path, draw in zip(paths, pictures.values(), strict=True):
        save(path, record, draw, kinds)
    return [path.with_suffix(f".{kind}") for path in paths for kind in kinds]
