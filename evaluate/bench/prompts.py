"""What benchmarks have texts go on from: stretches of a text, or of random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mxspec.formats.bundle import Bundle
from mxspec.runtime.command import read_text
from mxspec.runtime.text.tokenizer import load_tokenizer

PROMPT_TOKENS = 64


def read_tokens(bundle: Path, text_file: Path | None, prompts: int) -> list[int]:
    """Tokens of the text; of random ids where there is none."""
    opened = Bundle.open(bundle)
    if text_file is None:
        ids = np.random.default_rng(0).integers(0, opened.manifest.tokenizer.vocab_size, prompts * PROMPT_TOKENS)
        return [int(token) for token in ids]
    return list(load_tokenizer(opened.tokenizer_path).encode(read_text(text_file, "--text")).ids)


def prompts_of(token_ids: Sequence[int], count: int, length: int = PROMPT_TOKENS) -> list[list[int]]:
    """`count` stretches of a text, each of `length` tokens, evenly spread."""
    step = max((len(token_ids) - length) // count, 1)
    found = [list(token_ids[i * step : i * step + length]) for i in range(count)]
    return [prompt for prompt in found if prompt]
