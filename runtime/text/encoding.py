"""Tokenizers with expressions of their own: their texts are encoded by processes with limits, which run this file."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from mxspec.formats.errors import GenerationError, UnavailableError
from mxspec.runtime.guarded.fork_server import ForkServer, ProcessEndedError, RefusedError
from mxspec.runtime.guarded.forking import Answer, Bounds, fork_for_each
from mxspec.runtime.text.untrusted_tokenizer import guarded, own_expressions

LOAD_SECONDS = 10.0  # of processor time; a tokenizer of 256,000 tokens takes one
SECONDS, CHARACTER_SECONDS = 0.5, 1e-5  # for any text, and for each character, of which 0.3 to 1 microseconds are usual
BOUNDS = Bounds(memory_bytes=512 << 20, stack_bytes=8 << 20)
PARTS = ("normalizer", "pre_tokenizer")


@lru_cache(maxsize=8)
def encoder_of(tokenizer: Tokenizer) -> ForkServer | None:
    """What encodes for a tokenizer with expressions of its own; None for others, which do it themselves."""
    steps = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    found = [json.loads(step.__getstate__()) for step in steps if step is not None]
    return _encoder(tokenizer.to_str()) if own_expressions(found) else None


def _encoder(tokenizer_json: str) -> ForkServer:
    return ForkServer("mxspec.runtime.text.encoding", tokenizer_json, start_seconds=LOAD_SECONDS)


def encode_apart(encoder: ForkServer, text: str, *, special: bool) -> list[int]:
    """Token ids; raises GenerationError, and UnavailableError where a process was ended from outside."""
    try:
        answer = encoder.ask(SECONDS + CHARACTER_SECONDS * len(text), text, special)
    except ProcessEndedError as error:
        raise UnavailableError("prompt", str(error)) from None
    except RefusedError as error:
        raise GenerationError("prompt", f"the tokenizer cannot encode this text: {error}") from None
    return [int(token) for token in answer.split()]


def check_expressions(found: Any, tokenizer_json: str, probe: str) -> None:
    """Try a tokenizer.json with expressions of its own where it can hurt nobody.

    Raises ValueError for one that cannot be used, or not in time, and for expressions in its decoder, which runs amid
    texts.
    """
    if not isinstance(found, dict):
        return
    if own := own_expressions(found.get("decoder")):
        raise ValueError(f"its decoder has the expression {own[0][:80]!r}, expected a text")
    if not own_expressions([found.get(part) for part in PARTS]):
        return
    encoder = _encoder(tokenizer_json)
    try:
        encode_apart(encoder, probe, special=True)
    except GenerationError as error:
        raise ValueError(str(error)) from None
    finally:
        encoder.close()


def prepare(tokenizer_json: str) -> Answer:
    """A function that encodes a text: token ids with spaces between them."""
    with guarded("it cannot be read"):
        tokenizer = Tokenizer.from_str(tokenizer_json)
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def answer(text: str, special: bool) -> str:
        with guarded("it fails"):
            return " ".join(map(str, tokenizer.encode(text, add_special_tokens=special).ids))

    return answer


if __name__ == "__main__":
    fork_for_each(prepare, BOUNDS)
