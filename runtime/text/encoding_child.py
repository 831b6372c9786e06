"""The child of encoding.py: encodes texts by one tokenizer, within limits of time, memory and stack."""

from __future__ import annotations

from tokenizers import Tokenizer

from mxspec.runtime.guarded.forking import Answer, Bounds, fork_for_each
from mxspec.runtime.text.untrusted_tokenizer import guarded

BOUNDS = Bounds(memory_bytes=512 << 20, stack_bytes=8 << 20)


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
