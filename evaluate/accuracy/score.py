"""Score a window with the baseline and the other models side by side, call by call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.evaluate.accuracy.models import ScoredModel
from mxspec.evaluate.accuracy.statistics import Scores, compare_rows
from mxspec.evaluate.accuracy.windows import Window


def score_window(models: Sequence[ScoredModel], window: Window, chunk: int) -> list[Scores]:
    """The scores of each model, the baseline first, for the window's scored tokens.

    The models alternate call by call, so that memory holds the logits of one call of each.
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
