"""How much longer a tokenizer.json can make a text: a file of a few hundred bytes could ask for any memory.

`Replace` is the only step that writes texts of the file's own choice, before the model (a normalizer) or after it (a
decoder); a chain of them multiplies. The table of a `Precompiled` normalizer holds such texts, too.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

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
