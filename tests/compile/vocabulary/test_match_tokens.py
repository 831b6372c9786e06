"""Tokens of two tokenizers, matched by their bytes; the reference is what the tokenizers themselves decode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mxspec.compile.vocabulary.draft_vocabulary import most_frequent
from mxspec.compile.vocabulary.match_tokens import MatchedTokens, Side, TokenBytes, TokenReading
from mxspec.formats.errors import PairError, RecipeError

TEXT = [
    "Il était une fois, dans un petit village, un enfant qui était né un été.",
    "the cat sat on the mat, and the other cat sat on the other mat – 猫 and 🐈.",
] * 8
SPECIAL = ("<unk>", "<s>", "</s>", "<|user|>")


def byte_level(folder: Path, size: int) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return saved(tokenizer, folder / "byte_level.json", ["<|end|>", "<|user|>"])


def sentencepiece(folder: Path, size: int) -> Path:
    """As Llama 2: the byte tokens come first, spaces are ▁."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[], show_progress=False)
    tokenizer.train_from_iterator([text[:70] for text in TEXT], trainer)  # which leaves 猫 to its bytes
    learnt = {"<unk>": 0} | {f"<0x{byte:02X}>": 1 + byte for byte in range(256)}
    found = {token: 257 + place for place, token in enumerate(tokenizer.get_vocab())}
    tokenizer.model = models.BPE(vocab=learnt | found, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return saved(tokenizer, folder / "sentencepiece.json", SPECIAL)


def saved(tokenizer: Tokenizer, path: Path, special: Sequence[str]) -> Path:
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.save(str(path))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def side(path: Path, ends: Sequence[str], begin: str | None = None) -> tuple[Side, Tokenizer]:
    tokenizer = Tokenizer.from_file(str(path))
    tokens = TokenBytes.read(path, "target", tokenizer.get_vocab_size())
    ids = [tokenizer.token_to_id(name) for name in ends]
    return Side(tokens, ids, None if begin is None else tokenizer.token_to_id(begin)), tokenizer


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_bytes_are_what_the_tokenizer_decodes(folder: Path, make: Any) -> None:
    one, tokenizer = side(make(folder, 420), ["<|user|>"])
    vocab = tokenizer.get_vocab_size()
    assert one.tokens.ordinary.keys() | one.tokens.special.keys() == set(range(vocab))
    whole = 0
    for number, text in one.tokens.ordinary.items():
        decoded = tokenizer.decode([number], skip_special_tokens=False)
        if "�" not in decoded:
            assert decoded.encode() == text
            whole += 1
    assert whole > 150
    assert one.tokens.special[tokenizer.token_to_id("<|user|>")] == "<|user|>"


def test_tokens_with_the_same_bytes_are_one(folder: Path) -> None:
    target, ours = side(byte_level(folder, 420), ["<|end|>"])
    draft, theirs = side(sentencepiece(folder, 420), ["</s>"], "<s>")
    matched = MatchedTokens.of(target, draft)
    assert len(set(matched.draft_of.values())) == len(matched.draft_of)
    for name, other in ((" the", "▁the"), ("t", "t"), (" ", "▁"), ("\n", "<0x0A>")):
        (number,) = ours.encode(name).ids
        assert theirs.id_to_token(matched.draft_of[number]) == other
    e_acute = ours.encode("é").ids
    assert len(e_acute) == 1
    assert theirs.id_to_token(matched.draft_of[e_acute[0]]) == "é"
    assert matched.draft_of[ours.token_to_id("<|user|>")] == theirs.token_to_id("<|user|>")  # by its written form
    assert matched.draft_of[ours.token_to_id("<|end|>")] == theirs.token_to_id("</s>")  # by its role


@pytest.mark.parametrize("turned", [False, True])
def test_every_token_is_read_as_tokens_of_the_same_bytes(folder: Path, turned: bool) -> None:
    pair = [side(byte_level(folder, 420), ["<|end|>"]), side(sentencepiece(folder, 420), ["</s>"], "<s>")]
    (target, ours), (draft, _) = pair[::-1] if turned else pair
    matched = MatchedTokens.of(target, draft)
    arrays = TokenReading(target, draft, matched).arrays(ours.get_vocab_size())
    for number, text in target.tokens.ordinary.items():
        own = arrays["ids"][arrays["begins"][number] : arrays["begins"][number + 1]].tolist()
        assert b"".join(draft.tokens.ordinary[token] for token in own) == text
        assert len(own) == 1 or number not in matched.draft_of
    assert (np.diff(arrays["begins"]) > 1).any()
    if turned:  # the draft has no beginning, and reads the target's as the end of what came before
        begin = arrays["ids"][arrays["begins"][target.begin]]
        assert begin == draft.ends[0]


def test_the_fewest_tokens_are_read() -> None:
    draft = Side(TokenBytes({1: b"a", 2: b"ab", 3: b"bcd", 4: b"b", 5: b"c", 6: b"d"}, {}), (), None)
    target = Side(TokenBytes({0: b"abcd", 1: b"abx"}, {}), (), None)
    reading = TokenReading(target, draft, MatchedTokens.of(target, draft))
    assert reading.of(0) == [1, 3]  # not the longest first, which takes three
    assert reading.of(1) == [0]  # x is in no token


def test_tokens_that_are_not_bytes_are_refused(tmp_path: Path) -> None:
    path = saved(
        Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]")), tmp_path / "t.json", []
    )
    with pytest.raises(PairError, match=r"the tokens of the draft's tokenizer \(WordPiece\) are not bytes of the text"):
        TokenBytes.read(path, "draft", 3)


def test_the_most_frequent_tokens_and_the_ends_are_kept() -> None:
    ids, counts = np.array([0, 2, 3, 5, 8]), np.array([1, 9, 1, 4, 0, 0, 0, 0, 0])
    assert most_frequent(ids, counts, (8,), 3).tolist() == [0, 2, 4]  # ids 0 and 2 occur as often: the lower one
    assert most_frequent(ids, counts, (8,), 1).tolist() == [4]
    assert most_frequent(ids, counts, (), 5).tolist() == [0, 1, 2, 3, 4]
    for wanted in (0, 1, 6):
        with pytest.raises(RecipeError, match=rf"draft.vocabulary: got {wanted}, expected 2 to 5, the tokens"):
            most_frequent(ids, counts, (5, 8), wanted)
