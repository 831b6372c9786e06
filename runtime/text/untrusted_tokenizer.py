"""What a tokenizer.json could do to a process: expressions that take any time, texts of any length, panics.

The engine that searches for expressions (Oniguruma) tries one way to match after another: `\\w*\\w*\\d` takes a time
that grows with the cube of a text's length, minutes for a page, and no other thread of Python runs meanwhile. It gives
up after ten million tries from one place, which is too late for a text of many places. Known expressions take a time in
proportion to the text; those of a tokenizer's own are searched for by a process with a limit (encoding.py).

`Replace` is the only step that writes texts of the file's own choice, before the model (a normalizer) or after it (a
decoder); a chain of them multiplies, so a file of a few hundred bytes could ask for any memory. The table of a
`Precompiled` normalizer holds such texts, too.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mxspec.formats.errors import BundleError, MxspecError

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


MOST_GROWTH = 1000  # characters for one; those of known tokenizers write one or two for one
_LISTS = ("normalizers", "decoders")


def check_growth(found: Any) -> None:
    """Raise ValueError where a step of a tokenizer.json could make a text more than MOST_GROWTH times as long."""
    for part in ("normalizer", "decoder"):
        growth = 1.0
        for step in _steps(found.get(part) if isinstance(found, dict) else None):
            growth *= _growth_of(step)
        if growth > MOST_GROWTH:
            raise ValueError(f"its {part} makes texts up to {growth:.3g} times as long, expected at most {MOST_GROWTH}")


def _steps(step: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(step, dict):
        return
    yield step
    for name in _LISTS:
        for inner in step[name] if isinstance(step.get(name), list) else ():
            yield from _steps(inner)


def _growth_of(step: dict[str, Any]) -> float:
    """Characters that a step writes for one that it reads, at most; the library refuses what is no step."""
    content, pattern = step.get("content"), step.get("pattern")
    if step.get("type") == "Replace" and isinstance(content, str) and isinstance(pattern, dict):
        text = pattern.get("String")
        if isinstance(text, str) and text:
            return max(1.0, len(content) / len(text))
        return 1.0 + len(content) if content else 1.0  # an expression can match between any two characters
    table = step.get("precompiled_charsmap")
    if step.get("type") == "Precompiled" and isinstance(table, str):
        return float(max(1, _longest_entry(base64.b64decode(table))))
    return 1.0


def _longest_entry(table: bytes) -> int:
    """Bytes of the longest text in sentencepiece's table: the size of an index in 4 bytes, that, and texts with NUL."""
    return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))


@contextmanager
def guarded(what: str, error: Callable[[str], MxspecError] = BundleError) -> Iterator[None]:
    """Raise `error` for what the library raises, and BundleError for its panics: only a broken file makes it panic.

    It raises plain Exception; its panics are BaseExceptions.
    """
    try:
        yield
    except Exception as problem:
        raise error(f"{what}: {_line(problem)}") from None
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":  # pyo3's; it can be imported from nowhere
            raise
        raise BundleError(f"{what}: {_line(problem)}; the tokenizer.json is damaged") from None


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split())
