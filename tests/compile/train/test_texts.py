"""The texts that a head is trained on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mxspec.compile.train import texts
from mxspec.compile.train.texts import TrainingWriter, invented
from mxspec.runtime.calibration_text.openings import QUESTIONS
from tests.runtime.calibration_text.test_calibration_text import of_bytes

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"


def test_every_other_invented_question_goes_on_from_words_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    tokenizer = of_bytes()
    begun: list[str] = []

    def write(session: object, beginnings: Sequence[list[int]], *_: Any) -> list[list[int]]:
        begun.extend(tokenizer.decode(ids) for ids in beginnings)
        return [[*ids, *tokenizer.encode(" on").ids] for ids in beginnings]

    monkeypatch.setattr(texts, "continue_texts", write)
    words = QUESTIONS.read_text().splitlines()
    numbers = range(2 * len(words) + 2)
    invented(TrainingWriter(None, tokenizer, tmp_path, frozenset(), 512, 0))(numbers)  # type: ignore[arg-type]
    asked, answered = begun[: len(numbers)], begun[len(numbers) :]
    assert asked[::2] == ["<user>"] * (len(words) + 1)
    assert asked[1::2] == [f"<user>{word}" for word in [*words, words[0]]]
    assert answered[0] == "<user>on</><assistant>"
    assert answered[1] == f"<user>{words[0]} on</><assistant>"
