"""The number of beams, and when a search is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beams:
    """`count` beams are kept at a time, and the `best` texts are answered.

    A text's score is the sum of its tokens' log-probabilities over length ** length_penalty: above 0 long texts gain,
    below 0 short ones. `early_stopping` True ends the search with the first `count` texts that have ended, False where
    the best beam would not be better if it ended now, "never" where it could not be at any length (for a positive
    penalty judged by the longest length).
    """

    count: int
    best: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    counted: int = 0  # tokens that the prompt ends with and the length counts: those that a decoder has to begin with
    draft_beams: int | None = None  # of the draft's search, where k is given; None: twice `count`
