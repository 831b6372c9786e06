"""The expressions of published tokenizers, and which ones of a tokenizer.json are none of them.

The engine that searches for them (Oniguruma) tries one way to match after another: `\\w*\\w*\\d` takes a time that
grows with the cube of a text's length, minutes for a page, and no other thread of Python runs meanwhile. It gives up
after ten million tries from one place, which is too late for a text of many places. Known expressions take a time in
proportion to the text; those of a tokenizer's own are searched for by a process with a limit (encoding.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_REST = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _cased_words(end: str) -> str:
    """Words that begin with capitals or have none, and what may follow them."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return f"{before}{_UPPER}*{_LOWER}+{end}|{before}{_UPPER}+{_LOWER}*{end}"


# How tokenizer.json files cut texts, by the first model that did; then what they replace.
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = _WORDS + r"\p{N}{1,3}|" + _REST
QWEN_2 = _WORDS + r"\p{N}|" + _REST
TEKKEN = _cased_words("") + r"|\p{N}|" + _CASED_REST
GPT_4O = _cased_words(f"{_CONTRACTIONS}?") + r"|\p{N}{1,3}|" + _CASED_REST
SPACES = (r" {2,}", r"\s+", r"\s{2,}|[\n\r\t]")  # of tokenizers that were sentencepiece's
KNOWN = frozenset({GPT_2, LLAMA_3, QWEN_2, TEKKEN, GPT_4O, *SPACES})

_BRANCHING = frozenset("*+?{(|")  # without one of these there is one way to match


def own_expressions(part: Any) -> list[str]:
    """The expressions in a part of a tokenizer.json that are not known, and that may match in many ways."""
    return [one for one in _expressions(part) if one not in KNOWN and _BRANCHING.intersection(one)]


def _expressions(part: Any) -> Iterator[str]:
    """All of them, in steps within steps, too."""
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _expressions(inner)
    if isinstance(part, dict) and isinstance(part.get("Regex"), str):
        yield part["Regex"]
