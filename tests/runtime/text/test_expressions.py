"""Expressions of a tokenizer's own take so much time and no more; known ones take time in proportion to the text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.encoding import encoder_of
from mxspec.runtime.text.expressions import KNOWN, own_expressions
from mxspec.runtime.text.tokenizer import encode_rendered, load_tokenizer

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
def test_a_known_expression_takes_time_in_proportion(pattern: str) -> None:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    for run in RUNS:
        for end in ("", "x", "!", "\n"):
            began = time.process_time()
            cut.pre_tokenize_str(run * (20_000 // len(run)) + end)
            assert time.process_time() - began < 0.5, (run, end)


def test_known_and_simple_ones_are_encoded_here() -> None:
    for pattern in (*KNOWN, "[0-9][0-9][0-9]", "▁"):
        assert encoder_of(with_split(pattern)) is None
    assert own_expressions({"pretokenizers": [{"pattern": {"Regex": CUBIC}}, {"pattern": {"String": "a*"}}]}) == [CUBIC]


def test_others_are_encoded_the_same_but_not_for_long(tmp_path: Path) -> None:
    with_split(CUBIC).save(str(path := tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(path)
    began = time.monotonic()
    with pytest.raises(
        GenerationError, match=r"^prompt: the tokenizer cannot encode this text: it takes too much time$"
    ):
        encode_rendered(tokenizer, TEXT)
    assert time.monotonic() - began < 20
    for text in ("", "ab 1! é", "a1!" * 9):
        assert encode_rendered(tokenizer, text) == tokenizer.encode(text, add_special_tokens=False).ids
    encoder = encoder_of(tokenizer)
    assert encoder is not None
    encoder.close()


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
