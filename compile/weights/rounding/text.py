"""The text that calibrates rounding, as windows of token ids."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mxspec.formats.errors import RecipeError
from mxspec.recipes.recipe_text import read_recipe_text
from mxspec.runtime.text.tokenizer import encode_rendered

WINDOW = 1024  # tokens at most that are read as one text
_CHARACTERS_A_TOKEN = 16  # more than any text has on average


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """Windows int64[windows, length] of token ids, and the SHA-256 of the file that they were taken from.

    `sha256` is None for a text that the model wrote.
    """

    windows: NDArray[np.int64]
    sha256: str | None

    @property
    def own(self) -> bool:
        """Whether the model wrote the text."""
        return self.sha256 is None

    @property
    def tokens(self) -> int:
        """Token ids in all windows."""
        return int(self.windows.size)


def read_calibration(path: Path, tokenizer: Tokenizer, tokens: int, length: int, seed: int) -> CalibrationText:
    """About `tokens` tokens in windows of at most `length`, from places of the file that `seed` chooses.

    Each window begins with the token that the tokenizer begins every text with, if there is one. Raises RecipeError
    for a file that cannot be read or holds no two tokens.
    """
    text, sha256 = read_recipe_text("calibrate", path)
    length = min(length, WINDOW, tokens)
    begin = _begin(tokenizer)
    stretches = _stretches(tokenizer, text, max(1, tokens // length), length - len(begin), seed)
    if not stretches or len(stretches[0]) < 2:
        raise RecipeError(f"calibrate: {path} holds fewer than 2 tokens; give it some pages of text")
    windows = np.array([begin + stretch for stretch in stretches], np.int64)
    return CalibrationText(windows, sha256)


def _begin(tokenizer: Tokenizer) -> list[int]:
    """The token that begins every text, for tokenizers that say so; alone, it is what they make of an empty one."""
    ids: list[int] = tokenizer.encode("").ids
    return ids if len(ids) == 1 else []


def _stretches(tokenizer: Tokenizer, text: str, count: int, length: int, seed: int) -> list[list[int]]:
    """At most `count` stretches of `length` ids; a text with fewer ids than that is one stretch."""
    rng = np.random.default_rng(seed)
    piece, share = length * _CHARACTERS_A_TOKEN, len(text) // count
    if share >= piece:  # one stretch from each of `count` equal parts: the rest need not be encoded
        starts = share * np.arange(count) + rng.integers(0, share - piece + 1, count)
        found = [encode_rendered(tokenizer, text[start : start + piece])[:length] for start in starts]
        if whole := [ids for ids in found if len(ids) == length]:
            return whole
    ids = encode_rendered(tokenizer, text)
    if len(ids) < length:
        return [ids]
    cuts = np.sort(rng.permutation(len(ids) // length)[:count])
    return [ids[cut * length : (cut + 1) * length] for cut in cuts]
