"""Drafts with few or other tokens: their files, and a text as they read it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxspec.formats.errors import BundleError
from mxspec.runtime.models.draft_tokens import DraftTokens, Translation


def array(*values: int) -> Any:
    return np.array(values, np.int32)


FEW = {"head_ids": array(1, 4)}
OTHER = {**FEW, "begins": array(0, 1, 2, 4, 5, 6), "ids": array(7, 6, 5, 4, 3, 2), "start": array(1)}


def read(arrays: dict[str, Any], rows: int = 2) -> DraftTokens:
    return DraftTokens.from_arrays(arrays, rows=rows, reads=8, vocab_size=5)


def test_both_kinds() -> None:
    assert not read(FEW).foreign
    other = read(OTHER)
    assert other.foreign
    assert [other.read_as(token) for token in range(5)] == [[7], [6], [5, 4], [3], [2]]
    assert other.head_ids.dtype == np.int64
    assert other.start == (1,)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"head_ids": array(1)}, "head_ids has 1 ids for a head of 2 rows"),
        ({"head_ids": array(4, 1)}, "rising ids from 0 to 4"),
        ({"head_ids": array(1, 1)}, "rising ids from 0 to 4"),
        ({"head_ids": array(1, 5)}, "rising ids from 0 to 4"),
        ({"head_ids": array(-1, 1)}, "rising ids from 0 to 4"),
        ({"begins": array(0, 1, 2, 4, 5)}, "begins: expected 6 rising places from 0 to 6"),
        ({"begins": array(0, 1, 1, 4, 5, 6)}, "begins: expected 6 rising places"),
        ({"begins": array(0, 1, 2, 4, 5, 7)}, "begins: expected 6 rising places"),
        ({"begins": array(1, 2, 3, 4, 5, 6)}, "begins: expected 6 rising places"),
        ({"ids": array(7, 6, 5, 4, 3, 8)}, "ids: expected ids from 0 to 7"),
        ({"start": array(-1)}, "start: expected ids from 0 to 7"),
        ({"more": array(1)}, "holds begins, head_ids, ids, more, start, expected head_ids, or also"),
    ],
)
def test_a_damaged_file_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        read({**OTHER, **changed})


def test_a_text_is_read_in_pieces_rolled_back_and_copied() -> None:
    texts = Translation(read(OTHER), slots=2)
    assert texts.entries(0, 0, [2, 0]) == 4
    assert texts.read(0, 0, [2, 0]) == (0, [1, 5, 4, 7], [3, 4])  # the first token also has the start
    assert texts.read(0, 2, [2]) == (4, [5, 4], [2])
    assert texts.read(0, 1, [3]) == (3, [3], [1])  # after a rollback
    assert texts.read(0, 2, [1]) == (4, [6], [1])
    assert texts.copy(0, 1, 2) == (4, 0)
    assert texts.read(1, 2, [2, 2]) == (4, [5, 4, 5, 4], [2, 4])
    assert texts.entries(1, 3, [0]) == 7
    assert texts.read(0, 3, [0]) == (5, [7], [1])  # a copy is not the original


def test_a_text_that_begins_with_the_start_gets_no_second_one() -> None:
    texts = Translation(read({**OTHER, "start": array(7)}), slots=1)
    assert texts.read(0, 0, [0, 0]) == (0, [7, 7], [1, 2])
    assert texts.read(0, 0, [1]) == (0, [7, 6], [2])
