"""Windows of calibration text: how many, how long, from where."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mxspec.compile.weights.rounding.text import read_calibration


@pytest.fixture
def tokenizer() -> Tokenizer:
    """One word a token: w7 is 7; <s>, 0, begins every text."""
    words = {"<s>": 0} | {f"w{i}": i for i in range(1, 5000)}
    made = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def write_words(path: Path, count: int) -> Path:
    path.write_text(" ".join(f"w{1 + i % 4999}" for i in range(count)))
    return path


@pytest.mark.parametrize("count", [600, 200_000])  # some windows of few, and pieces of a text too long to encode whole
def test_windows_are_stretches_of_the_text_after_the_first_token(
    tokenizer: Tokenizer, tmp_path: Path, count: int
) -> None:
    text = read_calibration(write_words(tmp_path / "text", count), tokenizer, 400, 40, seed=1)
    assert text.windows.shape == (10, 40)
    assert text.tokens == 400
    assert (text.windows[:, 0] == 0).all()
    steps = np.diff(text.windows[:, 2:]) % 4999  # the first word of a piece may be cut
    assert (steps == 1).all()
    assert len(np.unique(text.windows[:, 5])) == 10


def test_the_seed_chooses_the_places(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_words(tmp_path / "text", 200_000)
    first, same, other = (read_calibration(path, tokenizer, 400, 40, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.windows, same.windows)
    assert (first.windows != other.windows).any()


def test_a_short_text_is_one_window(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = read_calibration(write_words(tmp_path / "text", 12), tokenizer, 4000, 1024, seed=0)
    np.testing.assert_array_equal(text.windows, [range(13)])
