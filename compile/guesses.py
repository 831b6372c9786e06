"""What a bundle holds for drafters without a model: tables of n-grams, and a corpus that can be searched."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from mxspec.compile.planning.model import Model
from mxspec.compile.progress import Stages
from mxspec.formats.bundle import BundleWriter
from mxspec.formats.errors import RecipeError
from mxspec.formats.manifest import GuessesEntry, GuessesName
from mxspec.formats.safetensors_file import write_arrays
from mxspec.recipes.recipe import Recipe
from mxspec.recipes.recipe_text import RecipeText, read_recipe_text
from mxspec.runtime.drafters.ngram import MOST_FOLLOWING, ORDERS
from mxspec.runtime.drafters.suffixes.suffix_corpus import suffix_order
from mxspec.runtime.text.tokenizer import encode_rendered, load_tokenizer

PIECE = 1 << 20  # characters to encode at a time, up to the next line end


def check_texts(recipe: Recipe) -> None:
    """Raise RecipeError if a text for drafters or calibration is not text, before the compile begins."""
    for name, path in recipe.guess_texts().items():
        _read(name, path)
    if recipe.calibrate is not None:
        read_recipe_text("calibrate", recipe.calibration_file())


def write_guesses(target: Model, writer: BundleWriter, stages: Stages) -> dict[GuessesName, GuessesEntry]:
    """Write a file for each text that the recipe names. Raises RecipeError if it is not text."""
    entries: dict[GuessesName, GuessesEntry] = {}
    for name, path in target.recipe.guess_texts().items():
        with stages.step(f"read text for {name}"):
            text, text_sha256 = _read(name, path)
            tokens = encode_text(load_tokenizer(target.checkpoint.tokenizer), text, target.known)
            if len(tokens) < 2:
                raise RecipeError(f"{name}: {path} holds fewer than 2 tokens; give it some pages of text")
            file = f"{name}.safetensors"
            writer.add_file(file, write_arrays(writer.folder / file, _arrays(name, tokens, target.known)))
        entries[name] = GuessesEntry(file=file, text_sha256=text_sha256, tokens=len(tokens))
    return entries


def _arrays(name: GuessesName, tokens: NDArray[np.int32], vocab_size: int) -> dict[str, NDArray[Any]]:
    return count_ngrams(tokens, vocab_size) if name == "ngram" else {"tokens": tokens, "ends": suffix_order(tokens)}


def _read(name: GuessesName, path: Path) -> RecipeText:
    read = read_recipe_text(name, path)
    if not read.text.strip():
        raise RecipeError(f"{name}: {path} holds no text")
    return read


def encode_text(tokenizer: Tokenizer, text: str, vocab_size: int) -> NDArray[np.int32]:
    """Token ids int32[n], without ids that have no logits in the models."""
    pieces = (encode_rendered(tokenizer, piece) for piece in _pieces(text))
    ids = np.fromiter(chain.from_iterable(pieces), np.int32)
    return ids[ids < vocab_size]


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + PIECE) + 1 or len(text)
        yield text[start:end]
        start = end


def count_ngrams(tokens: NDArray[np.int32], vocab_size: int) -> dict[str, NDArray[Any]]:
    """Tables of `tokens` int32[n]: the MOST_FOLLOWING most frequent tokens after each two, one and zero tokens."""
    ids = tokens.astype(np.int64)
    arrays: dict[str, NDArray[Any]] = {}
    for order in ORDERS:
        keys = np.zeros(max(len(ids) - order, 0), np.int64)
        for place in range(order):
            keys = keys * vocab_size + ids[place : place + len(keys)]
        contexts, starts, following, counts = _count(keys, ids[order:])
        if order:
            arrays |= {f"contexts.{order}": contexts, f"starts.{order}": starts.astype(np.int32)}
        arrays |= {f"ids.{order}": following.astype(np.int32), f"counts.{order}": counts.astype(np.int32)}
    return arrays


def _count(keys: NDArray[np.int64], following: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Distinct keys, where the entries of each key begin, and for each entry a token and its count."""
    order = np.lexsort((following, keys))
    keys, following = keys[order], following[order]
    new = np.ones(len(keys), bool)
    new[1:] = (np.diff(keys) != 0) | (np.diff(following) != 0)
    firsts = np.flatnonzero(new)
    counts = np.diff(firsts, append=len(keys))
    keys, following = keys[firsts], following[firsts]
    kept = _most_frequent(keys, counts)
    keys, following, counts = keys[kept], following[kept], counts[kept]
    contexts, starts = np.unique(keys, return_index=True)
    return contexts, np.append(starts, len(keys)), following, counts


def _most_frequent(keys: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each entry is among the MOST_FOLLOWING most frequent of its key; the first of a tie wins."""
    order = np.lexsort((-counts, keys))
    _, starts, sizes = np.unique(keys, return_index=True, return_counts=True)
    rank = np.arange(len(keys)) - np.repeat(starts, sizes)
    kept = np.zeros(len(keys), bool)
    kept[order[rank < MOST_FOLLOWING]] = True
    return kept
