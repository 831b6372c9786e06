"""Stop strings: the same cut however the text comes, nothing shown that would have to be taken back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models

from mxspec.formats.errors import GenerationError
from mxspec.runtime.text.stream import StopSearch, TextStream, check_stops


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the text is read a letter at a time, until it ends with a stop string; the longest."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6)))
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


def test_the_first_stop_string_ends_the_text_whatever_the_tokens() -> None:
    rng = random.Random(1)
    found = 0
    for _ in range(20_000):
        text = "".join(rng.choices("aab", k=rng.randrange(12)))
        stops = ["".join(rng.choices("aab", k=rng.randint(1, 5))) for _ in range(rng.randint(0, 3))]
        search = StopSearch(stops)
        shown = "".join(search.push(piece) for piece in cut(text, rng)) + search.finish()
        assert (shown, search.found) == first_stop(text, stops), (text, stops)
        found += search.found is not None
    assert found > 5_000


def test_only_a_possible_beginning_of_a_stop_string_is_held_back() -> None:
    rng = random.Random(2)
    for _ in range(5_000):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 3))]
        search, text, shown = StopSearch(stops), "", ""
        for letter in rng.choices("ab", k=10):
            text += letter
            shown += search.push(letter)
            if search.found:
                break
            held = text[len(shown) :]
            assert text.startswith(shown)
            assert not held or any(stop.startswith(held) for stop in stops)
            longer = (text[i:] for i in range(len(shown)))
            assert not any(stop.startswith(end) for end in longer for stop in stops)


def test_the_earliest_end_wins_and_the_longest_of_those_that_end_together() -> None:
    for stops in (["b", "abc"], ["abc", "b"]):
        search = StopSearch(stops)
        assert (search.push("xabc"), search.found) == ("xa", "b")
    for stops in (["b", "ab"], ["ab", "b"]):
        search = StopSearch(stops)
        assert (search.push("xa"), search.push("b"), search.found) == ("x", "", "ab")


def test_no_text_follows_a_stop_string() -> None:
    search = StopSearch(["END"])
    assert [search.push(piece) for piece in ("a E", "N", "D b", "c")] == ["a ", "", "", ""]
    assert (search.finish(), search.found) == ("", "END")


def make_tokenizer() -> Tokenizer:
    """Byte tokens as Llama 2 has them, and words."""
    names = [*(f"<0x{byte:02X}>" for byte in range(256)), "▁stop", "▁here", "per", "!", "▁st"]
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def stream(ids: list[int], stop: list[str]) -> tuple[list[str], str, str | None]:
    text = TextStream(make_tokenizer(), stop=stop)
    return [text.push(token) for token in ids], text.finish(), text.stop


def test_stops_cross_tokens_and_characters_in_pieces() -> None:
    stop, here, per, mark, st = range(256, 261)
    assert stream([here, st, stop, per, mark], [" stopper"]) == ([" here", "", " st", "", ""], "", " stopper")
    euro = [*"5€".encode()]
    assert stream([here, *euro, mark, here], ["€"]) == ([" here", "", "", "", "", "5", ""], "", "€")
    assert stream([here, *euro], ["€"]) == ([" here", "", "", "", ""], "5", "€")  # found when the tokens end
    assert stream([here, *euro[:-1], mark], ["€"]) == ([" here", "", "", "", "���!"], "", None)
    assert stream([here, st], [" stop"]) == ([" here", ""], " st", None)


@pytest.mark.parametrize("value", ["", [""], ["a", ""], [1], 1, None, b"a", [b"a"], {"a"}, {"a": 1}, [None]])
def test_invalid_stop_strings(value: Any) -> None:
    with pytest.raises(GenerationError, match=r"^stop: got "):
        check_stops(value)


def test_one_stop_string_or_several() -> None:
    assert check_stops("ab") == ("ab",)
    assert check_stops(["ab", "c"]) == ("ab", "c")
    assert check_stops(()) == ()
