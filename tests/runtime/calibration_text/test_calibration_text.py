"""Text that a model writes by itself: how it begins, how it is sampled, and that it can be had again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from mxspec.formats.bundle import Bundle
from mxspec.runtime.calibration_text.openings import BETWEEN, QUESTIONS, WORDS, openings_of, question_openings
from mxspec.runtime.calibration_text.write import SAMPLING, continue_texts, sampled, write_texts
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

LINES = WORDS.read_text().splitlines()


def of_bytes() -> Tokenizer:
    """A tokenizer whose ids are bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_a_model_without_a_template_begins_with_every_kind_of_text(tmp_path: Path) -> None:
    tokenizer = of_bytes()
    assert openings_of(tmp_path, tokenizer) == [tokenizer.encode(line).ids for line in LINES]


def test_a_chat_model_also_begins_as_a_user_would(tmp_path: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = of_bytes()
    openings = openings_of(tmp_path, tokenizer)
    chats = [i for i, opening in enumerate(openings) if opening == tokenizer.encode("<user>").ids]
    assert chats == list(range(0, len(openings), BETWEEN + 1))
    assert len(openings) - len(chats) == len(LINES)


@pytest.mark.parametrize("template", ["{{ raise_exception('no') }}", "{% for", "{{ 'fixed' }}"])
def test_a_template_that_renders_no_question_is_left_out(tmp_path: Path, template: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    assert len(openings_of(tmp_path, of_bytes())) == len(LINES)


def test_a_tokenizer_without_any_of_the_words_begins_with_its_first_token(tmp_path: Path) -> None:
    assert openings_of(tmp_path, Tokenizer(models.WordLevel({"w0": 0}, unk_token="no"))) == [[0]]


def test_questions_begin_with_words_that_follow_the_users_turn() -> None:
    tokenizer = of_bytes()
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $0", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    lines = QUESTIONS.read_text().splitlines()
    assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in question_openings(tokenizer)] == lines
    assert question_openings(Tokenizer(models.WordLevel({"w0": 0}, unk_token="no"))) == [[]]


def test_texts_do_not_depend_on_how_many_are_written_at_a_time(tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    openings, told = [[5, 6, 7], [9], [11, 12]], list[int]()
    one, three = (write_texts(Session.of(bundle, "target", slots), openings, 5, 24, 3, told.append) for slots in (1, 3))
    assert sum(told) == 2 * 5 * 24
    assert np.array_equal(one, three)
    assert [row.tolist()[: len(openings[i % 3])] for i, row in enumerate(one)] == [openings[i % 3] for i in range(5)]
    assert not np.array_equal(one[0], one[3])  # the same opening, other random numbers
    other = write_texts(Session.of(bundle, "target", 3), openings, 5, 24, 4, told.append)
    assert not np.array_equal(one, other)


def test_an_opening_keeps_its_end(tiny_bundles: dict[str, Path]) -> None:
    session = Session.of(Bundle.open(tiny_bundles["near"]), "target", 1)
    texts = write_texts(session, [list(range(3, 40))], 1, 16, 0, lambda count: None)
    assert texts[0, :8].tolist() == list(range(32, 40))


class _Fixed:
    """A session whose tokens are independent, all with the same probabilities."""

    slots = 4

    def __init__(self, probabilities: Sequence[float]) -> None:
        self._logits = np.log(np.array(probabilities, np.float32))

    def run(self, parts: Sequence[Part]) -> NDArray[np.float32]:
        return np.tile(self._logits, (len(parts), 1))


def test_tokens_have_the_models_own_frequencies_but_for_the_tail() -> None:
    probabilities = [0.5, 0.3, 0.16, 0.03, 0.01]
    texts = write_texts(_Fixed(probabilities), [[0]], 40, 501, 0, lambda count: None)  # type: ignore[arg-type]
    share = np.bincount(texts[:, 1:].ravel(), minlength=5) / texts[:, 1:].size
    assert SAMPLING.top_p == 0.95
    kept = np.array([0.5, 0.3, 0.16, 0, 0]) / 0.96  # the fewest tokens that have at least 0.95
    assert np.abs(share - kept).max() < 5 * np.sqrt(0.25 / 20_000)


def test_a_text_ends_where_one_of_the_ends_is_written_whatever_is_beside_it(tiny_bundles: dict[str, Path]) -> None:
    bundle, openings = Bundle.open(tiny_bundles["near"]), [[5, 6, 7], [9], [11, 12], [3], [4, 8]]

    def texts(slots: int, ends: Sequence[int]) -> list[list[int]]:
        choices = [sampled([7, number], 24) for number in range(len(openings))]
        return continue_texts(Session.of(bundle, "target", slots), openings, choices, 24, lambda count: None, ends)

    whole = texts(2, ())
    assert {len(text) for text in whole} == {24}
    end = whole[1][6]
    cut = [
        text[: text.index(end, len(opening)) + 1 if end in text[len(opening) :] else 24]
        for text, opening in zip(whole, openings, strict=True)
    ]
    assert texts(2, [end]) == texts(5, [end]) == cut
