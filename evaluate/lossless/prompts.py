"""Prompts: pieces of the user's text, or random tokens of the pair's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine

SHORTEST, LONGEST = 2, 24  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class CheckPrompt:
    """Token ids that a text continues, and the source that encoders read, if the models have encoders."""

    tokens: list[int]
    source: tuple[int, ...] = ()


def make_prompts(engine: Engine, text: str | None, count: int, seed: int) -> list[CheckPrompt]:
    """`count` prompts of different lengths; every second prompt shares a prefix or the source with the one before.

    So that a slot continues from tokens that another slot has read.
    """
    rng = np.random.default_rng(seed)
    encoded = engine.target.source_capacity
    longest = max(min(LONGEST, (encoded or engine.target.capacity) // 3), SHORTEST)
    known = _own_tokens(engine) if text is None else engine.encode(text)
    if len(known) < LONGEST:
        raise MxspecError(f"--text: got {len(known)} tokens, expected at least {LONGEST}: give a longer text")
    prompts: list[CheckPrompt] = []
    start, bos = list(engine.bundle.manifest.tokenizer.decoder_start), engine.bundle.manifest.tokenizer.bos_token_id
    first = [] if bos is None else [bos]
    for i in range(count):
        length = int(rng.integers(SHORTEST, longest + 1))
        piece = _piece(known, length, rng, whole=text is not None)
        if not encoded:
            begin = prompts[-1].tokens[: len(prompts[-1].tokens) * 2 // 3] if i % 2 else first
            prompts.append(CheckPrompt([*begin, *piece]))
        elif i % 2:
            prompts.append(CheckPrompt([*start, *piece[:SHORTEST]], prompts[-1].source))
        else:
            prompts.append(CheckPrompt(start, tuple(piece)))
    return prompts


def _own_tokens(engine: Engine) -> list[int]:
    """All ids except special tokens and tokens that end a text."""
    entry = engine.bundle.manifest.tokenizer
    special = {token for token, added in engine.tokenizer.get_added_tokens_decoder().items() if added.special}
    return [token for token in range(entry.vocab_size) if token not in special | set(entry.eos_token_ids)]


def _piece(known: Sequence[int], length: int, rng: np.random.Generator, *, whole: bool) -> list[int]:
    """Neighbouring tokens of a text, or random tokens of a vocabulary."""
    if whole:
        first = int(rng.integers(0, len(known) - length + 1))
        return list(known[first : first + length])
    return [int(token) for token in rng.choice(known, length)]
