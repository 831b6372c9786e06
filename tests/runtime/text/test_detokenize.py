"""Streamed text: joined, the pieces are one decode of all ids, and nothing is held back that is final."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from mxspec.runtime.text.detokenize import BYTE_OF_LETTER, Pieces, Whole, detokenizer
from mxspec.runtime.text.stream import TextStream

LOST = "\N{REPLACEMENT CHARACTER}"
BYTES = [*b"ab\n ", *bytes.fromhex("e697a5 f09f9982 c3a9 ff c0 eda0 f490 efbfbd")]
WORDS = ["▁", "▁▁", "▁the", "the", "日", "é", "!", "##ing", "▁a▁b", "<0xZZ>", ".", "n't", LOST]


def byte_level() -> Tokenizer:
    """Ids 0 to 255 are bytes, 256 two words of two bytes, then special tokens and added ones."""
    tokenizer = Tokenizer(models.BPE(vocab=BYTE_OF_LETTER, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken("日本 x"), AddedToken("é")])
    return tokenizer


def byte_fallback(decoder: decoders.Decoder | None) -> Tokenizer:
    """Ids 0 to 255 are bytes as well, spelled <0x00>; then words, special tokens and added ones."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.add_tokens([AddedToken("<tool>"), AddedToken("▁x y")])
    return tokenizer


def sequence(*steps: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence(list(steps))


SPACES = decoders.Replace("▁", " ")
LLAMA = sequence(SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0))
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "llama-2": lambda: byte_fallback(LLAMA),
    "gemma": lambda: byte_fallback(sequence(SPACES, decoders.ByteFallback(), decoders.Fuse())),
    "strips two": lambda: byte_fallback(
        sequence(SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 2, 0))
    ),
    "fused first": lambda: byte_fallback(sequence(decoders.ByteFallback(), decoders.Fuse(), SPACES)),
    "metaspace": lambda: byte_fallback(decoders.Metaspace()),
    "bytes, then metaspace": lambda: byte_fallback(sequence(decoders.ByteFallback(), decoders.Metaspace())),
    "no first space": lambda: byte_fallback(sequence(decoders.ByteFallback(), decoders.Metaspace("▁", "never"))),
    "wordpiece": lambda: byte_fallback(decoders.WordPiece()),
    "none": lambda: byte_fallback(None),
    "nested": lambda: byte_fallback(sequence(sequence(SPACES, decoders.ByteFallback()), decoders.Fuse())),
    "whole text": lambda: byte_fallback(
        sequence(decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("the", "THE"))
    ),
    "ends": lambda: byte_fallback(decoders.BPEDecoder("!")),
}
STREAMED = [name for name in TOKENIZERS if name not in ("whole text", "ends")]


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def stream(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> tuple[list[str], str]:
    text = TextStream(tokenizer, prompt)
    return [text.push(token) for token in ids], text.finish()


def random_ids(tokenizer: Tokenizer, rng: random.Random, length: int) -> list[int]:
    """Bytes that make, begin and break characters, in runs, among all other tokens and ids that there are not."""
    others = range(256, tokenizer.get_vocab_size() + 2)
    share = rng.choice([0.1, 0.5, 0.9])
    return [rng.choice(BYTES) if rng.random() < share else rng.choice(others) for _ in range(length)]


def texts(name: str, *, count: int) -> Iterator[tuple[Tokenizer, random.Random]]:
    tokenizer, rng = TOKENIZERS[name](), random.Random(name)
    for _ in range(count):
        yield tokenizer, rng


@pytest.mark.parametrize("name", TOKENIZERS)
def test_joined_pieces_are_one_decode_of_all_ids(name: str) -> None:
    for tokenizer, rng in texts(name, count=1500):
        ids = random_ids(tokenizer, rng, rng.randrange(30))
        pieces, tail = stream(tokenizer, [], ids)
        assert "".join(pieces) + tail == decode(tokenizer, ids), ids


def final_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    """What all decodes of these ids and any more begin with: an oracle that tries up to three more."""
    text = decode(tokenizer, ids)
    later = [[], *([b] for b in BYTES), *([0x80] * n for n in (1, 2, 3)), [0xA0, 0x80], [0x90, 0x80, 0x80], [256 + 3]]
    for more in later:
        other = decode(tokenizer, ids + more)
        while not other.startswith(text):
            text = text[:-1]
    return text


@pytest.mark.parametrize("name", STREAMED)
def test_nothing_is_held_back_that_is_final_and_nothing_shown_that_is_not(name: str) -> None:
    for tokenizer, rng in texts(name, count=60):
        ids = random_ids(tokenizer, rng, 12)
        pieces, _ = stream(tokenizer, [], ids)
        for i in range(1, len(ids) + 1):
            assert "".join(pieces[:i]) == final_text(tokenizer, ids[:i]), ids[:i]


@pytest.mark.parametrize("name", STREAMED)
def test_a_text_continues_its_prompt(name: str) -> None:
    """decode(prompt + ids) is decode(prompt) and the pieces, wherever the ids do not change what the prompt says."""
    compared = 0
    for tokenizer, rng in texts(name, count=1500):
        prompt, ids = (random_ids(tokenizer, rng, rng.randrange(20)) for _ in range(2))
        before, whole = decode(tokenizer, prompt), decode(tokenizer, prompt + ids)
        pieces, tail = stream(tokenizer, prompt, ids)
        if whole.startswith(before):
            assert before + "".join(pieces) + tail == whole, (prompt, ids)
            compared += 1
    assert compared > 1200


@pytest.mark.parametrize("name", ["byte-level", "llama-2"])
def test_a_character_begun_by_the_prompt_is_shown_whole(name: str) -> None:
    assert stream(TOKENIZERS[name](), [*b"x", 0xE6, 0x97], [0xA5, *b"y"]) in (
        (["日", "y"], ""),
        (["", ""], "日y"),  # byte-fallback: one run
    )


def test_the_bytes_of_the_issue() -> None:
    """The library's DecodeStream raises "Invalid prefix encountered" on these."""
    tokenizer = TOKENIZERS["llama-2"]()
    ids = [0xE6, 0x97, 0x97, 0xE6, tokenizer.token_to_id("the")]
    assert stream(tokenizer, [], ids) == (["", "", "", "", LOST * 4 + "the"], "")


def test_half_a_character_waits_for_the_rest_and_a_lost_byte_for_nothing() -> None:
    tokenizer = byte_level()
    pieces, tail = stream(tokenizer, [], list("é€🙂x".encode()))
    assert (pieces, tail) == (["", "é", "", "", "€", "", "", "", "🙂", "x"], "")
    assert stream(tokenizer, [], [0x61, 0xFF, 0x62, 0xE6]) == (["a", LOST, "b", ""], LOST)


def test_decoding_a_token_costs_the_same_at_any_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids handed to the library grow with the text, not with its square: in words, in runs of bytes, in broken ones."""
    tokenizer = TOKENIZERS["llama-2"]()
    word = tokenizer.token_to_id("▁the")
    for ids in (
        [word],
        [*"日".encode()],
        [0xFF],
        [*"日".encode(), 0xFF, word],
        [0x20],
        [tokenizer.token_to_id("</s>")],
    ):
        text = detokenizer(tokenizer, ids * 10)
        assert isinstance(text, Pieces)
        decoded = 0

        class Counting:
            def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
                nonlocal decoded
                decoded += len(ids)
                return str(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

        monkeypatch.setattr(text, "_tokenizer", Counting())
        for _ in range(1000):
            for token in ids:
                text.push(token)
        text.finish()
        assert decoded < 1000 * len(ids) * 12


def test_a_decoder_that_needs_the_whole_text_waits_for_the_end() -> None:
    assert isinstance(detokenizer(TOKENIZERS["whole text"]()), Whole)
    assert isinstance(detokenizer(TOKENIZERS["ends"]()), Whole)
    assert not any(isinstance(detokenizer(TOKENIZERS[name]()), Whole) for name in STREAMED)


@pytest.mark.parametrize("name", STREAMED)
def test_special_tokens_have_no_text_and_break_no_character(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    end = tokenizer.token_to_id("</s>")
    ids = [0xE6, end, 0x97, end, 0xA5]
    pieces, tail = stream(tokenizer, [end], ids)
    assert "".join(pieces) + tail == decode(tokenizer, [0xE6, 0x97, 0xA5])
