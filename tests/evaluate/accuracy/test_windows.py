"""Windows: each token scored once, as near the beginning of a window as the stride says; what is put before them."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, processors

from mxspec.evaluate.accuracy.windows import Cut, choose_cut, cut_text, encode_text, leading_tokens
from mxspec.formats.errors import MxspecError
from tests.conftest import BOS, make_byte_tokenizer

LEADS = ((), (99,))


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize(("length", "stride"), [(4, 4), (4, 1), (5, 2), (8, 8), (8, 3), (100, 7)])
@pytest.mark.parametrize("count", [1, 2, 4, 9, 10, 33])
def test_every_token_is_scored_once_in_the_first_window_that_holds_it(
    lead: tuple[int, ...], length: int, stride: int, count: int
) -> None:
    cut = choose_cut(lead, 1000, length, stride)
    windows = list(cut_text(range(count), cut, 7))
    scored = [token for window in windows for token in window.tokens[len(window.tokens) - window.scored :]]
    overlapping = cut.stride < length - len(lead)
    unpredicted = set() if lead else ({0} if overlapping else set(range(0, count, cut.stride)))
    assert scored == [token for token in range(count) if token not in unpredicted]
    for window in windows:
        assert window.tokens[: len(lead)] == lead
        assert len(window.tokens) <= length
        assert window.scored < len(window.tokens), "something predicts the first that counts"
        assert window.tokens[-window.scored] == window.first
        assert window.document == 7
    for window in windows[1:]:
        context = len(window.tokens) - len(lead) - window.scored
        assert not overlapping or context == length - len(lead) - cut.stride


def test_windows_that_do_not_overlap_are_the_default() -> None:
    assert choose_cut((), 5000, None, None) == Cut((), 2048, 2048)
    assert choose_cut((1,), 5000, None, None) == Cut((1,), 2048, 2047)
    assert choose_cut((1,), 96, None, None) == Cut((1,), 96, 95)
    assert choose_cut((1,), 96, 96, 96) == Cut((1,), 96, 95)


@pytest.mark.parametrize(
    ("lead", "window", "stride", "said"),
    [((), 97, None, "2 to 96"), ((), 1, None, "2 to 96"), ((1,), 1, None, "2 to 96"), ((), 8, 9, "at most 8")],
)
def test_windows_that_cannot_be_are_refused(
    lead: tuple[int, ...], window: int | None, stride: int | None, said: str
) -> None:
    with pytest.raises(MxspecError, match=said):
        choose_cut(lead, 96, window, stride)


def with_bos() -> Tokenizer:
    tokenizer = make_byte_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", BOS + 1)]
    )
    return tokenizer


def test_special_tokens_before_a_text_lead_and_those_after_it_are_not_scored() -> None:
    assert leading_tokens(with_bos(), BOS) == (BOS,)
    assert leading_tokens(make_byte_tokenizer(), BOS) == ()
    for text in ("ab", "<bos>ab"):
        assert encode_text(with_bos(), text, (BOS,)) == [ord("a"), ord("b")]
