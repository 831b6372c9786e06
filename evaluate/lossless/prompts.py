"""What the checked texts begin with: pieces of the user's text, or tokens of the pair's own vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mxspec.formats.errors import MxspecError
from mxspec.runtime.engine import Engine

SHORTEST, LONGEST = 2, 24  # tokens of a prompt


def make_prompts(engine: Engine, text: str | None, count: int, seed: int) -> list[list[int]]:
    """Token ids of `count` prompts of different lengths; every other one begins as the one before it does.

    So that a slot goes on from what another has read.
    """
    rng = np.random.default_rng(seed)
    longest = max(min(LONGEST, engine.target.capacity // 3), SHORTEST)
    source = _own_tokens(engine) if text is None else engine.encode(text)
    if len(source) < LONGEST:
        raise MxspecError(f"--text: got {len(source)} tokens, expected at least {LONGEST}: give a longer text")
    prompts: list[list[int]] = []
    for i in range(count):
        length = int(rng.integers(SHORTEST, longest + 1))
        begin = prompts[-1][: len(prompts[-1]) * 2 // 3] if i % 2 else _begin(engine)
        prompts.append([*begin, *_piece(source, length, rng, whole=text is not None)])
    return prompts


def _own_tokens(engine: Engine) -> list[int]:
    """All ids but those that the tokenizer calls special, and ends of a text."""
    entry = engine.bundle.manifest.tokenizer
    special = {token for token, added in engine.tokenizer.get_added_tokens_decoder().items() if added.special}
    return [token for token in range(entry.vocab_size) if token not in special | set(entry.eos_token_ids)]


def _begin(engine: Engine) -> list[int]:
    bos = engine.bundle.manifest.tokenizer.bos_token_id
    return [] if bos is None else [bos]


def _piece(source: Sequence[int], length: int, rng: np.random.Generator, *, whole: bool) -> list[int]:
    """Tokens that stand together in a text, or any of a vocabulary."""
    if whole:
        first = int(rng.integers(0, len(source) - length + 1))
        return list(source[first : first + length])
    return [int(token) for token in rng.choice(source, length)]
