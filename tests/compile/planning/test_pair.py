"""The pair check: token → id maps, padded logits, the ids that end a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxspec.compile.checkpoint.settings.generation_config import read_special_tokens
from mxspec.compile.planning.pair import TokenIds, check_pair, usable_ids
from mxspec.formats.errors import CheckpointError, PairError


def read(folder: Path, vocab: Any, added: list[dict[str, Any]] | None = None) -> TokenIds:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": added or []}))
    return TokenIds.read(folder / "tokenizer.json")


def test_added_tokens_belong_to_the_map(tmp_path: Path) -> None:
    vocabulary = read(tmp_path, {"a": 0, "b": 1}, [{"id": 4, "content": "<end>"}])
    assert vocabulary.ids == {"a": 0, "b": 1, "<end>": 4}
    assert vocabulary.size == 5


def test_a_token_may_be_added_in_one_and_ordinary_in_the_other(tmp_path: Path) -> None:
    check_pair(read(tmp_path, {"a": 0}, [{"id": 1, "content": "b"}]), read(tmp_path, {"b": 1, "a": 0}))


def test_unigram_vocabularies_are_lists(tmp_path: Path) -> None:
    assert read(tmp_path, [["<unk>", 0.0], ["x", -1.5]]).ids == {"<unk>": 0, "x": 1}


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        ({"a": 0, "b": 2, "c": 1}, "2 tokens differ, such as 'b', id 1 in the target and 2 in the draft"),
        (
            {"a": 0, "b": 1},
            "1 tokens differ, such as 'c', id 2 in the target and none in the draft",
        ),
        ({"a": 0, "b": 1, "c": 2, "d": 3}, "such as 'd', id none in the target and 3 in the draft"),
        ({"a": 0, "b": 1, "C": 2}, "2 tokens differ, such as 'C'"),
    ],
)
def test_same_size_is_not_same_tokenizer(tmp_path: Path, draft: dict[str, int], says: str) -> None:
    target = read(tmp_path, {"a": 0, "b": 1, "c": 2})
    with pytest.raises(PairError) as caught:
        check_pair(target, read(tmp_path, draft))
    assert says in str(caught.value)


def words(count: int) -> dict[str, int]:
    return {f"w{i}": i for i in range(count)}


@pytest.mark.parametrize("more", ["target", "draft"])
def test_a_token_that_one_model_lacks_is_reported(more: str) -> None:
    both = {"target": TokenIds(words(20)), "draft": TokenIds(words(20))}
    both[more] = TokenIds({**words(20), "<extra>": 20})
    said = check_pair(both["target"], both["draft"])
    assert said is not None
    assert "1 tokens, such as '<extra>', are in one tokenizer of the pair alone" in said
    assert check_pair(TokenIds(words(20)), TokenIds(words(20))) is None


def test_one_id_may_not_be_two_tokens() -> None:
    with pytest.raises(PairError, match="2 tokens differ, such as '<a>'"):
        check_pair(TokenIds({**words(20), "<a>": 20}), TokenIds({**words(20), "<b>": 20}))


def test_padded_logits_are_fine_and_added_tokens_without_one() -> None:
    vocabulary = TokenIds({"a": 0, "b": 9, "<pad>": 10}, frozenset({10}))
    assert usable_ids("target", vocabulary, 64) == usable_ids("target", vocabulary, 11) == 11
    assert usable_ids("draft", vocabulary, 10) == 10
    with pytest.raises(PairError, match="the draft has 9 logits for a tokenizer of 11 ids, of which 'b' is no added"):
        usable_ids("draft", vocabulary, 9)


NO_TOKENIZERS = [
    "{",
    "[]",
    "{}",
    '{"model": 3}',
    '{"model": {"vocab": {}}}',
    '{"model": {"vocab": 7}}',
    '{"model": {"vocab": {"a": -1}}}',
    '{"model": {"vocab": {"a": 0, "a": 1}}}',
]


@pytest.mark.parametrize("text", NO_TOKENIZERS)
def test_invalid_tokenizers(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        TokenIds.read(tmp_path / "tokenizer.json")


def test_the_generation_config_decides_about_the_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    entry = read_special_tokens(tmp_path, "0" * 64, 10)
    assert (entry.bos_token_id, entry.eos_token_ids, entry.vocab_size) == (1, (2,), 10)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    entry = read_special_tokens(tmp_path, "0" * 64, 10)
    assert (entry.bos_token_id, entry.eos_token_ids) == (1, (2, 7))


def test_no_ends_at_all(tmp_path: Path) -> None:
    entry = read_special_tokens(tmp_path, "0" * 64, 10)
    assert (entry.bos_token_id, entry.eos_token_ids) == (None, ())


@pytest.mark.parametrize("token", [10, -1, "2", True, 2.0])
def test_ends_outside_the_vocabulary(tmp_path: Path, token: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": token}))
    with pytest.raises(CheckpointError, match=r"eos_token_id .* is not one of the tokenizer's 10 ids"):
        read_special_tokens(tmp_path, "0" * 64, 10)
