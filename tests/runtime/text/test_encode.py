"""Prompts to token ids: what tokenizer.json must not change in silence, and what is no prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.tokenizer import check_ids, encode_prompt, encode_rendered, load_tokenizer, longest_text

BOS = 3


def make_tokenizer(*, adds_bos: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return tokenizer


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(16)
    tokenizer.save(str(tmp_path / "short.json"))
    tokenizer.enable_padding(length=500)
    tokenizer.save(str(tmp_path / "padded.json"))
    for name in ("short.json", "padded.json"):
        assert len(load_tokenizer(tmp_path / name).encode("a b " * 110).ids) == 221


PANICS: list[dict[str, Any]] = [
    {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},  # when it is read
    {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "X", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },  # when it is used
    {"decoder": {"type": "Strip", "content": "?", "start": 5, "stop": 5}},
]


@pytest.mark.parametrize("damage", PANICS)
def test_a_tokenizer_that_makes_the_library_panic(tmp_path: Path, damage: dict[str, Any]) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(make_tokenizer().to_str()) | damage))
    with pytest.raises(BundleError) as caught:
        load_tokenizer(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", '{"model": 3}', "[" * 1000])
def test_files_that_are_no_tokenizers(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    with pytest.raises(BundleError, match="cannot be read as a tokenizer"):
        load_tokenizer(path)


def test_a_second_beginning_of_text_is_left_out() -> None:
    tokenizer = make_tokenizer()
    assert encode_prompt(tokenizer, "a b", BOS) == [BOS, 0, 1]
    assert encode_prompt(tokenizer, "<s>a b", BOS) == [BOS, 0, 1]
    assert encode_prompt(tokenizer, "<s><s>a", BOS) == [BOS, BOS, 0]  # as the text says
    assert encode_prompt(tokenizer, "a<s>", BOS) == [BOS, 0, BOS]
    assert encode_prompt(tokenizer, "<s>", BOS) == [BOS]
    assert encode_prompt(tokenizer, "<s>a b", None) == [BOS, BOS, 0, 1]
    assert encode_prompt(make_tokenizer(adds_bos=False), "<s><s>a", BOS) == [BOS, BOS, 0]
    assert encode_rendered(tokenizer, "a b") == [0, 1]
    twice = make_tokenizer()
    twice.post_processor = processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", BOS)])
    assert encode_prompt(twice, "", BOS) == [BOS, BOS]  # as the file says


@pytest.mark.parametrize("text", [b"abc", 3, None, ["a"], "a\ud800"])
def test_values_that_are_not_text(text: Any) -> None:
    with pytest.raises(GenerationError, match=r"^prompt: got "):
        encode_prompt(make_tokenizer(), text, BOS)


def test_a_text_that_the_tokenizer_has_no_tokens_for(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="gone"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(GenerationError, match="cannot encode this text"):
        encode_prompt(tokenizer, "b", None)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"def", "bytes"),
        ("def", "str"),
        ({1, 2}, "set"),
        (iter([1]), "iterator"),
        (7, "int"),
        (np.ones((1, 2), np.int64), "ndarray"),
        (np.ones(2, bool), "True at position 0"),
        ([0, 1.0], "1.0 at position 1"),
        ([0, True], "True at position 1"),
        ([0, np.bool_(True)], "True_? at position 1"),
        ([[1]], r"\[1\] at position 0"),
        ([0, 10], "token id 10 at position 1, expected 0 to 9: use the bundle's tokenizer"),
        ([-1], "token id -1 at position 0"),
        ([2**70], f"token id {2**70}"),
    ],
)
def test_values_that_are_not_lists_of_ids(value: Any, says: str) -> None:
    with pytest.raises(GenerationError, match=rf"^prompt: got .*{says}"):
        check_ids(value, 10)


def test_lists_of_ids() -> None:
    wanted = [1, 2, 9]
    given = [1, 2, 9], (1, 2, 9), np.array([1, 2, 9], np.uint8), [np.int64(1), np.int32(2), np.array(9)]
    for value in given:
        found = check_ids(value, 10)
        assert found == wanted
        assert all(type(token) is int for token in found)
    assert check_ids(range(3), 10) == [0, 1, 2]
    assert check_ids([], 10) == []


@pytest.mark.parametrize("merge", [["a", "é"], "a é", ["a"], [], 3])
def test_a_merge_without_the_prefix_does_not_end_the_process(tmp_path: Path, merge: Any) -> None:
    """The library cuts the prefix off as bytes, and aborts over the half character in its own error."""
    path = tmp_path / "tokenizer.json"
    found = json.loads(Tokenizer(models.BPE(vocab={"a": 0, "é": 1}, merges=[])).to_str())
    found["model"] |= {"continuing_subword_prefix": "x", "merges": [merge]}
    path.write_text(json.dumps(found))
    with pytest.raises(BundleError, match=r"cannot be read as a tokenizer: merge .* does not go on with 'x'"):
        load_tokenizer(path)


def test_merges_with_a_prefix_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    vocabulary = {"a": 0, "##é": 1, "aé": 2}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "##é")], continuing_subword_prefix="##")).save(str(path))
    assert load_tokenizer(path).encode("aé").ids == [2]


def test_so_many_tokens_hold_no_longer_text() -> None:
    """Of byte-level tokenizers exactly; of one with <unk>, which takes a word of any length, with room."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytewise = Tokenizer(models.BPE(letters, []))
    bytewise.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise.add_special_tokens(["<|end of a turn|>"])
    for text in ("aé日本 x", "<|end of a turn|>" * 9, "x" * 99):
        assert len(text.encode()) <= longest_text(bytewise, len(encode_rendered(bytewise, text)))
    assert longest_text(bytewise, 10) == 10 * len("<|end of a turn|>")
    assert longest_text(make_tokenizer(), 10) == 10 * len("</s>") * 16


def test_a_long_text_is_encoded_as_a_short_one() -> None:
    tokenizer = make_tokenizer()
    short = encode_prompt(tokenizer, "a b ? " * 100, BOS)
    assert encode_prompt(tokenizer, "a b ? " * 10000, BOS) == [BOS, *short[1:] * 100]
