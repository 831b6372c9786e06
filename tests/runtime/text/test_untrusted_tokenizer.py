"""What a stranger's tokenizer.json may not do: expressions that take any time, and texts of any length."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.encoding import encoder_of
from mxspec.runtime.text.tokenizer import encode_rendered, load_tokenizer
from mxspec.runtime.text.untrusted_tokenizer import KNOWN, check_growth, own_expressions

RUNS = ("a", "A", " ", "\n", "\r ", "1", "!", "中", "\u0301", " a", "a1", "A\u0301", "'s", "' ", "/\n")
CUBIC = r"\w*\w*\d!"
TEXT = "a" * 2000 + " 1 !"  # ten seconds; another 2,000 take a minute more


def bytewise() -> Tokenizer:
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    return Tokenizer(models.BPE(vocab={name: token for token, name in enumerate(names)}, merges=[]))


def with_split(pattern: str) -> Tokenizer:
    tokenizer = bytewise()
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    return tokenizer


@pytest.mark.parametrize("pattern", sorted(KNOWN))
def test_a_known_expression_has_few_ways_to_match(pattern: str) -> None:
    """The library counts its tries from one place, and gives up after ten million."""
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    for run in RUNS:
        for end in ("", "x", "!", "\n"):
            cut.pre_tokenize_str(run * (20_000 // len(run)) + end)
    with pytest.raises(BaseException, match="retry-limit-in-match over"):
        pre_tokenizers.Split(Regex(CUBIC), "isolated").pre_tokenize_str("a" * 20_000 + " 1 !")


def test_known_and_simple_ones_are_encoded_here() -> None:
    for pattern in (*KNOWN, "[0-9][0-9][0-9]", "▁"):
        assert encoder_of(with_split(pattern)) is None
    assert own_expressions({"pretokenizers": [{"pattern": {"Regex": CUBIC}}, {"pattern": {"String": "a*"}}]}) == [CUBIC]


def test_others_are_encoded_the_same_but_not_for_long(tmp_path: Path) -> None:
    with_split(CUBIC).save(str(path := tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(path)
    with pytest.raises(
        GenerationError, match=r"^prompt: the tokenizer cannot encode this text: it takes too much time$"
    ):
        encode_rendered(tokenizer, TEXT)
    for text in ("", "ab 1! é", "a1!" * 9):
        assert encode_rendered(tokenizer, text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_what_runs_amid_texts_has_no_expressions(tmp_path: Path) -> None:
    tokenizer = bytewise()
    tokenizer.decoder = decoders.Replace(Regex(CUBIC), "")
    tokenizer.save(str(path := tmp_path / "tokenizer.json"))
    with pytest.raises(BundleError, match=r"cannot be read as a tokenizer: its decoder has the expression '\\\\w\*"):
        load_tokenizer(path)


def test_a_file_whose_loading_hurts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxspec.runtime.text.encoding.SECONDS", 0.2)
    tokenizer = bytewise()
    hurts = normalizers.Replace(Regex(r"(?:[ -~]{1,9}){1,9}\d{9}"), "")
    tokenizer.normalizer = normalizers.Sequence([hurts] * 200)
    tokenizer.save(str(path := tmp_path / "tokenizer.json"))
    with pytest.raises(BundleError, match=r"cannot be read as a tokenizer: prompt: .*(too much time|retry-limit)"):
        load_tokenizer(path)


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
