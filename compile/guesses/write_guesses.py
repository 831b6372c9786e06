"""Write the files for drafters without a model: tables of n-grams, and a corpus that can be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.guesses.count_ngrams import count_ngrams
from mxspec.compile.guesses.encode_text import encode_text
from mxspec.compile.progress import Stages
from mxspec.formats.array_file import write_arrays
from mxspec.formats.bundle_writer import BundleWriter
from mxspec.formats.errors import RecipeError
from mxspec.formats.manifest import FileEntry, GuessesEntry, GuessesName
from mxspec.formats.suffix_order import suffix_order
from mxspec.recipes.recipe import Recipe
from mxspec.recipes.recipe_text import RecipeText, read_recipe_text
from mxspec.runtime.text.tokenizer import load_tokenizer


def check_texts(recipe: Recipe) -> None:
    """Raise RecipeError if a text for drafters or calibration is not text, before the compile begins."""
    for name, path in recipe.guess_texts().items():
        _read(name, path)
    if recipe.calibrate is not None:
        read_recipe_text("calibrate", recipe.calibration_file())


def write_guesses(
    recipe: Recipe,
    tokenizer: Path,
    vocab_size: int,
    writer: BundleWriter,
    contents: dict[str, FileEntry],
    stages: Stages,
) -> dict[GuessesName, GuessesEntry]:
    """Write a file for each text that the recipe names, listed in `contents`. Raises RecipeError if it is not text."""
    entries: dict[GuessesName, GuessesEntry] = {}
    for name, path in recipe.guess_texts().items():
        with stages.step(f"read text for {name}"):
            text, text_sha256 = _read(name, path)
            tokens = encode_text(load_tokenizer(tokenizer), text, vocab_size)
            if len(tokens) < 2:
                raise RecipeError(f"{name}: {path} holds fewer than 2 tokens; give it some pages of text")
            file = f"{name}.safetensors"
            sha256 = write_arrays(writer.folder / file, _arrays(name, tokens, vocab_size))
        contents[file] = writer.entry(file, sha256)
        entries[name] = GuessesEntry(file=file, text_sha256=text_sha256, tokens=len(tokens))
    return entries


def _arrays(name: GuessesName, tokens: NDArray[np.int32], vocab_size: int) -> dict[str, NDArray[Any]]:
    return count_ngrams(tokens, vocab_size) if name == "ngram" else {"tokens": tokens, "ends": suffix_order(tokens)}


def _read(name: GuessesName, path: Path) -> RecipeText:
    read = read_recipe_text(name, path)
    if not read.text.strip():
        raise RecipeError(f"{name}: {path} holds no text")
    return read
