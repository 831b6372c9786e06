"""Rows of logits that must be equal, bit for bit: K + 1 scored in one call, and single steps.

They must be equal after a rollback of drafts, next to any other text in the call, and on any number of threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from mxspec.evaluate.lossless.effort import Effort, Speed
from mxspec.evaluate.lossless.result import Equality
from mxspec.formats.manifest import ModelName
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.shape import Logits

SHARE = 0.1  # of the models' time
LEAST, MOST = 10, 64  # tokens
SLOTS = 3
_ALONE = 1  # the slot of single steps


def check_bits(engine: Engine, tokens: Sequence[int], effort: Effort, speed: Speed) -> list[Equality]:
    """Score one text with both models, in calls of every width."""
    k_max = engine.bundle.manifest.k_max
    calls = speed.one_row + sum(2 * speed.seconds(width) / width for width in range(2, k_max + 2))
    length = int(min(max(SHARE * effort.model_seconds / calls, LEAST), MOST, engine.target.capacity))
    models = [name for name in get_args(ModelName) if name in engine.bundle.manifest.models and name != "baseline"]
    found = []
    before = ops.threads()
    try:
        for name in models:
            finding = Equality(name=f"rows of the {name}", unit="rows")
            model = Session.of(engine.bundle, name, SLOTS)
            text = list(tokens[: min(length, model.capacity)])
            while model.translation is not None and not model.fits(0, 0, [*text, *text]):  # its own tokens are more
                text = text[: len(text) // 2]
            compare_rows(model, text, k_max, finding)
            found.append(finding)
    finally:
        ops.set_threads(before)
    return found


def compare_rows(model: Session, tokens: list[int], k_max: int, finding: Equality) -> None:
    """Compare each row of `tokens`, in calls of every width, with single steps on one thread.

    An encoder first reads some of the tokens: alone, and then in one call with another source, in the other slot.
    """
    ops.set_threads(1)
    source = tokens[: model.source_capacity]
    if source:
        model.encode([(_ALONE, source)])
    steps = [model.run([model.part(_ALONE, i, [token], 1)])[0].copy() for i, token in enumerate(tokens)]
    for threads in (1, max(len(os.sched_getaffinity(0)), 2)):
        ops.set_threads(threads)
        if source:
            model.encode([(0, source[::-1][:5]), (2, source)])
        for width in range(2, k_max + 2) if threads > 1 else (k_max + 1,):
            for first, rows in _scored(model, tokens, width):
                for i, row in enumerate(rows):
                    finding.compared += 1
                    if row.tobytes() != steps[first + i].tobytes():
                        finding.differences.append(
                            f"token {first + i}, scored as number {i + 1} of {width} on {threads} threads, "
                            f"differs by {np.abs(row - steps[first + i]).max():.1e}"
                        )


def _scored(model: Session, tokens: list[int], width: int) -> Iterator[tuple[int, Logits]]:
    """Rows of the text in one slot, `width` a call, beside another text in another slot.

    Before each call, a call reads as many other tokens, which are rolled back.
    """
    other = tokens[::-1]
    for first in range(0, len(tokens), width):
        piece = tokens[first : first + width]
        beside = model.part(0, min(first, 3), other[:2] if first else other[:5], 1)
        model.run([model.part(2, first, other[: len(piece)], 1)])
        rows = model.run([beside, model.part(2, first, piece, len(piece))])
        yield first, rows[1:].copy()
