"""What moved between two records of one benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.compare.figures import Figure, figures_of, settings_of
from bench.compare.judge import LEVEL, Move, move_of
from bench.compare.result import ComparedFigure, CompareResult, Verdict
from mxspec.evaluate.record import Record
from mxspec.evaluate.significance import holm_corrected
from mxspec.formats.errors import MxspecError


def compare(old: Record, new: Record, least_move: float) -> CompareResult:
    """Compare every figure that both records have. A move below `least_move` (0.02: 2 %) counts as noise.

    Raises MxspecError if the records are of different benchmarks.
    """
    kinds = type(old.result), type(new.result)
    if kinds[0] is not kinds[1]:
        what = " and ".join(f"{r.name} ({r.command.split(' --')[0]})" for r in (old, new))
        raise MxspecError(f"{what} are records of different benchmarks; expected two of one")
    before, after = figures_of(old.result), figures_of(new.result)
    both = [name for name in before if name in after]
    moves = {name: _move(before[name], after[name]) for name in both}
    tested = {name: move for name, move in moves.items() if move is not None}
    corrected = dict(zip(tested, holm_corrected([move.p for move in tested.values()]), strict=True))
    return CompareResult(
        old=old.name,
        new=new.name,
        warnings=(*_differences(old, new), *_unmatched(before, after)),
        figures=tuple(
            _compared(before[name], after[name], moves[name], corrected.get(name), least_move) for name in both
        ),
    )


def _move(old: Figure, new: Figure) -> Move | None:
    return None if old.trials is None or new.trials is None else move_of(old.trials, new.trials)


def _compared(old: Figure, new: Figure, move: Move | None, p: float | None, least_move: float) -> ComparedFigure:
    ratio = move.ratio if move else new.value / old.value if old.value else None
    return ComparedFigure(
        figure=old.name,
        old=old.value,
        new=new.value,
        ratio=ratio,
        interval=move.interval if move else None,
        p=p,
        verdict=_verdict(old, new, move, p, least_move),
    )


def _verdict(old: Figure, new: Figure, move: Move | None, p: float | None, least_move: float) -> Verdict:
    if old.trials is None or new.trials is None:
        return "no trials"
    if move is None or p is None:
        return "cannot tell"
    if p >= LEVEL or abs(move.ratio - 1) < least_move:
        return "within noise"
    if old.faster_if_more is None:
        return "changed"
    return "faster" if old.faster_if_more == (move.ratio > 1) else "slower"


def _differences(old: Record, new: Record) -> Iterator[str]:
    """Differences of machine, packages and settings."""
    for what, before, after in (
        ("machine", old.machine, new.machine),
        ("version", old.versions, new.versions),
        ("setting", settings_of(old.result), settings_of(new.result)),
    ):
        for name in sorted({*before, *after}):
            if (a := before.get(name)) != (b := after.get(name)) and name != "mxspec":
                yield f"{what}: {name} was {_said(a)}, is {_said(b)}"
    reads = [getattr(record.result, "read_bytes_per_second", None) for record in (old, new)]
    if reads[0] and reads[1] and abs(reads[1] / reads[0] - 1) > 0.05:
        yield f"a plain read gave {reads[0] / 1e9:.1f} GB/s, gives {reads[1] / 1e9:.1f}: the machine's speed differs"


def _said(value: Any) -> str:
    return "not said" if value is None else str(value)


def _unmatched(before: dict[str, Figure], after: dict[str, Figure]) -> Iterator[str]:
    for which, names in (("old", before.keys() - after.keys()), ("new", after.keys() - before.keys())):
        if names:
            yield f"{len(names)} figure{'s' * (len(names) > 1)} only in the {which} record, such as {min(names)}"
