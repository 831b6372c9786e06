"""Streamed text: pieces that are whole characters, and together the text of all tokens."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from mxspec.runtime.text import TextStream


def stream(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> tuple[list[str], str]:
    text = TextStream(tokenizer, prompt)
    return [text.push(token) for token in ids], text.finish()


def test_half_a_character_is_held_back_until_it_is_whole(byte_tokenizer: Tokenizer) -> None:
    ids = list("é€🙂x".encode())
    pieces, tail = stream(byte_tokenizer, [], ids)
    assert pieces == ["", "é", "", "", "€", "", "", "", "🙂", "x"]
    assert tail == ""


def test_what_never_becomes_a_character_comes_at_the_end(byte_tokenizer: Tokenizer) -> None:
    pieces, tail = stream(byte_tokenizer, [], list("ok🙂".encode())[:-1])
    assert pieces == ["o", "k", "", "", ""]
    assert tail == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("prompt", [b"", b"say ", "naïve €".encode(), b"\xe2\x82"])
def test_any_bytes_in_any_order_give_the_text_of_all_of_them(byte_tokenizer: Tokenizer, prompt: bytes) -> None:
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.choice([*b"ab ", 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99, 0x82, 0xC3, 0xFF]) for _ in range(30)]
        pieces, tail = stream(byte_tokenizer, list(prompt), ids)
        if prompt == b"\xe2\x82":  # whether the first byte completes the prompt's character is not ours to say
            assert ("".join(pieces) + tail).endswith(bytes(ids).decode(errors="replace")[1:])
        else:
            assert "".join(pieces) + tail == bytes(ids).decode(errors="replace")
        assert not any("\N{REPLACEMENT CHARACTER}" in piece[-1:] for piece in pieces)


def test_the_first_piece_keeps_its_space_behind_a_prompt() -> None:
    """Decoders of the SentencePiece kind drop the space that begins a text; behind a prompt it is not the beginning."""
    words = {word: i for i, word in enumerate(["▁say", "▁it", "▁again"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="▁say"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    assert stream(tokenizer, [0], [1, 2])[0] == [" it", " again"]
    assert stream(tokenizer, [], [1, 2])[0] == ["it", " again"]


def test_special_tokens_have_no_text(byte_tokenizer: Tokenizer) -> None:
    pieces, tail = stream(byte_tokenizer, [256], [*b"hi", 257])
    assert "".join(pieces) + tail == "hi"
