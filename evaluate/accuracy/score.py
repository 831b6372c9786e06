"""Score a window with the baseline and with other models at once, call by call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.evaluate.accuracy.models import Model
from mxspec.evaluate.accuracy.statistics import Scores, compare_rows
from mxspec.evaluate.accuracy.windows import Window


def score_window(models: Sequence[Model], window: Window, chunk: int) -> list[Scores]:
    """Scores of each model, the first being the baseline, of the window's tokens that count.

    The models read call by call, alternating, so that no more than a call's logits of each are held.
    """
    read, next_ids = window.tokens[:-1], np.asarray(window.tokens[-window.scored :], dtype=np.int64)
    parts: list[list[Scores]] = []
    first = 0
    for baseline, *others in zip(
        *(model.score(read, window.scored, chunk, window.source) for model in models), strict=True
    ):
        parts.append(compare_rows(baseline, others, next_ids[first : first + len(baseline)]))
        first += len(baseline)
    return [Scores.joined(of_model) for of_model in zip(*parts, strict=True)]
