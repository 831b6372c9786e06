"""Text after tokens; the reference is the tokenizer's own encoding of both together."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mxspec.formats.errors import BundleError
from mxspec.runtime.drafters.text_draft import Continuation

TEXT = "the other child was born in a summer – été – and the cat 猫 sat on 12345 mats 🐈, there.\n\n  Then they left."


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def sentencepiece() -> Tokenizer:
    """As Llama 2's: it puts a space in front of every text, and unknown characters are bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=80, show_progress=False)
    tokenizer.train_from_iterator([TEXT.replace("猫", "").replace("🐈", "")] * 3, trainer)
    learnt = tokenizer.get_vocab()
    bytes_too = {f"<0x{byte:02X}>": len(learnt) + byte for byte in range(256)}
    merges = [(one, two) for one in learnt for two in learnt if one + two in learnt]
    tokenizer.model = models.BPE(vocab=learnt | bytes_too, merges=merges, byte_fallback=True, fuse_unk=True)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made


def test_it_goes_on_as_the_whole_text_does(tokenizer: Tokenizer) -> None:
    """After every token; the bytes that are left are those of the tokens that follow."""
    ids, continuation = tokenizer.encode(TEXT).ids, Continuation(tokenizer)
    sizes = [len(continuation.bytes_of(token)) for token in ids]
    begin = sum(sizes) - len(TEXT.encode())  # a space that the tokenizer has put in front of the text
    whole = b" " * begin + TEXT.encode()
    for place in range(1, len(ids)):
        rest = whole[sum(sizes[:place]) :]
        found, ends = continuation.after(ids[:place], rest)
        assert found == ids[place:]
        assert ends == [sum(sizes[place:end]) for end in range(place + 1, len(ids) + 1)]


def test_half_a_character_is_left_out(tokenizer: Tokenizer) -> None:
    continuation, before = Continuation(tokenizer), tokenizer.encode("the cat").ids
    whole, _ = continuation.after(before, " sat é".encode())
    assert continuation.after(before, " sat é".encode()[:-1]) == continuation.after(before, b" sat ")
    assert continuation.after(before, " sat é".encode()[:-1] + b"\xff") == continuation.after(before, b" sat ")
    assert len(whole) > 1
    assert continuation.after(before, b"\xc3") == ([], [])


def test_a_word_that_would_have_been_cut_otherwise_goes_on_by_its_bytes(tokenizer: Tokenizer) -> None:
    """Such as the, then re, of a tokenizer with a token there: it would not have written the."""
    continuation, others = Continuation(tokenizer), 0
    for word in (" other", " child", " there"):
        for place in range(2, len(word)):
            begun, whole = (tokenizer.encode(f"cat{text}").ids for text in (word[:place], word))
            if begun != whole[: len(begun)]:
                rest = word[place:].encode()
                found, ends = continuation.after(begun, rest)
                assert b"".join(map(continuation.bytes_of, found)) == rest[: ends[-1] if ends else 0]
                others += bool(found)
    assert others


def test_special_tokens_may_come_before() -> None:
    tokenizer = byte_level()
    found, _ = Continuation(tokenizer).after([tokenizer.token_to_id("<|end|>")], b"the cat")
    assert found == tokenizer.encode("the cat").ids


def test_a_text_that_the_tokenizer_changes_gives_nothing() -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    continuation = Continuation(tokenizer)
    assert continuation.after([], b"THE") == ([], [])
    assert continuation.after([], b"the")[0]


def test_a_tokenizer_with_an_expression_of_its_own_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    split = pre_tokenizers.Split(Regex(r"\w*\w*\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, tokenizer.pre_tokenizer])
    with pytest.raises(BundleError, match="no expressions of its own; compile the bundle with --draft-tokens tli"):
        Continuation(tokenizer)
