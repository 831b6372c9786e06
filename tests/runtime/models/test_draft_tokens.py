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
        ({"texts": array(1)}, "holds begins, head_ids, ids, start, texts, expected head_ids, or also"),
        ({"more": array(1)}, "holds begins, head_ids, ids, more, start, expected head_ids, or also"),
    ],
)
def test_a_damaged_file_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(BundleError, match=says):
        read({**OTHER, **changed})


WRITES = {
    **OTHER,
    "head_ids": array(4, -1, 0, -1, -1, -1, -1, 2),
    "texts": np.frombuffer(b"abcdefg", np.uint8),
    "text_begins": array(0, 2, 2, 3, 4, 5, 6, 6, 7),
}


def test_a_draft_that_writes_text_has_a_row_for_each_of_its_tokens() -> None:
    """Its head may have more, as many have for padding."""
    for rows in (8, 12):
        found = read(WRITES, rows)
        assert found.texts == (b"ab", b"", b"c", b"d", b"e", b"f", b"", b"g")
        assert found.rows is None
        assert found.head_ids.tolist() == [4, -1, 0, -1, -1, -1, -1, 2]


@pytest.mark.parametrize(
    ("changed", "rows", "says"),
    [
        ({}, 7, "head_ids has 8 ids for a head of 7 rows"),
        ({"head_ids": array(*range(5))}, 5, "head_ids has 5 ids for 8 tokens"),
        ({"head_ids": array(*range(5))}, 8, "head_ids has 5 ids for a head of 8 rows"),
        ({"head_ids": array(-2, *[0] * 7)}, 8, "head_ids: expected ids from -1 to 4"),
        ({"head_ids": array(5, *[0] * 7)}, 8, "head_ids: expected ids from -1 to 4"),
        ({"text_begins": array(0, 2, 2, 3, 4, 5, 6, 7)}, 8, "text_begins: expected 9 places that do not fall"),
        ({"text_begins": array(0, 2, 1, 3, 4, 5, 6, 6, 7)}, 8, "text_begins: expected 9 places that do not fall"),
        ({"text_begins": array(0, 2, 2, 3, 4, 5, 6, 6, 8)}, 8, "text_begins: expected 9 places .* from 0 to 7"),
    ],
)
def test_damaged_texts_are_refused(changed: dict[str, Any], rows: int, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        read({**WRITES, **changed}, rows)


def test_what_a_draft_wrote_stays_up_to_where_both_agree() -> None:
    texts = Translation(read(WRITES, 8), slots=2)
    texts.read(0, 0, [2, 0])  # four entries
    assert texts.write(0, 2, [None, 3, None]) == 4  # of three more tokens, the second ends with the third that it wrote
    assert [texts.agreed(0, length) for length in range(6)] == [0, 1, 2, 2, 4, 4]
    assert texts.entries(0, 4, [2]) == 9
    assert texts.copy(0, 1, 3, 1) == (4, 3)  # up to two tokens
    assert texts.agreed(1, 3) == 2
    assert texts.read(0, 2, [2]) == (4, [5, 4], [2])
    assert texts.agreed(0, 3) == 3


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
