"""A tokenizer.json that makes texts longer without bounds is refused, by what it says, before it is used."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from mxspec.formats.errors import BundleError
from mxspec.runtime.text.growth import check_growth
from mxspec.runtime.text.tokenizer import load_tokenizer


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def chain(part: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {part: {"type": "Sequence", f"{part}s": list(steps)}}


def table(*texts: str) -> dict[str, Any]:
    index = bytes(8)
    whole = len(index).to_bytes(4, "little") + index + "\0".join(texts).encode()
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(whole).decode()}


A = {"String": "a"}


@pytest.mark.parametrize(
    "found",
    [
        {"normalizer": replace(A, "x" * 10_000_000)},
        {"decoder": replace({"Regex": "."}, "x" * 1000)},
        chain("normalizer", *[replace(A, "aa")] * 10),
        chain("decoder", replace(A, "b" * 50), chain("decoder", replace({"String": "b"}, "c" * 50))["decoder"]),
        {"normalizer": table("x", "y" * 1001)},
    ],
)
def test_texts_without_bounds_are_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="times as long, expected at most 1000"):
        check_growth(found)


@pytest.mark.parametrize(
    "found",
    [
        {"normalizer": None, "decoder": {"type": "ByteLevel"}},
        chain("normalizer", {"type": "Prepend", "prepend": "_"}, replace({"String": " "}, "_")),
        chain("normalizer", replace({"Regex": " {2,}"}, " "), {"type": "NFKC"}, *[replace(A, "b")] * 200),
        chain("decoder", replace({"String": "_"}, " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
        {"normalizer": table("\ufdfa", "x" * 36)},
        {"normalizer": [3]},
        [],
    ],
)
def test_what_tokenizers_have_is_taken(found: Any) -> None:
    check_growth(found)


def test_a_file_that_asks_for_any_memory_is_one_line(tmp_path: Path, byte_tokenizer: Tokenizer) -> None:
    path = tmp_path / "tokenizer.json"
    whole = json.loads(byte_tokenizer.to_str())
    path.write_text(json.dumps(whole | chain("normalizer", *[replace(A, "a" * 50)] * 8)))
    with pytest.raises(BundleError, match="cannot be read as a tokenizer: its normalizer makes texts up to"):
        load_tokenizer(path)
