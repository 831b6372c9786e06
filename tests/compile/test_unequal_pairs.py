"""Pairs whose models differ in what they know, and a target alone: from checkpoints to text."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import GenerationError
from mxspec.runtime.engine import Engine
from tests.compile.commands.test_speccompile import (
    LLAMA,
    VOCABULARY,
    done,
    random_model,
    write_pair,
    write_tokenizer,
)

CONTEXT = 96


def add_token(folder: Path) -> None:
    """One token more than the model has logits for."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.add_special_tokens([AddedToken("<extra>", special=True)])
    tokenizer.save(path)


def write_unequal(folder: Path, **draft: object) -> Path:
    recipe = write_pair(folder, "llama")
    settings = {**LLAMA, "hidden_size": 32, "vocab_size": VOCABULARY, **draft}
    random_model("llama", settings).half().save_pretrained(folder / "draft")
    write_tokenizer(folder / "draft")
    return recipe


def texts_at_every_k(bundle: Path, new_tokens: int) -> list[list[int]]:
    with Engine(bundle, slots=2) as engine:
        prompt = list(range(3, 20))
        return [
            engine.generate(prompt, max_new_tokens=new_tokens, temperature=0, k=k, ignore_eos=True).result().token_ids
            for k in (0, 1, 4)
        ]


def test_a_draft_that_knows_fewer_positions_and_tokens(tmp_path: Path) -> None:
    """The target's tokenizer has a token that its logits have and the draft's lack; the draft ends at 32 positions."""
    recipe = write_unequal(tmp_path, max_position_embeddings=32)
    add_token(tmp_path / "target")
    result = done(recipe, "-o", tmp_path / "out.bundle")
    assert "1 tokens, such as '<extra>', are in one tokenizer of the pair alone" in result.stderr
    assert f"the draft knows 32 of {CONTEXT} positions" in result.stderr
    manifest = Bundle.open(tmp_path / "out.bundle").manifest
    assert (manifest.models["target"].context_length, manifest.models["draft"].context_length) == (CONTEXT, 32)
    assert (manifest.tokenizer.vocab_size, manifest.models["draft"].vocab_size) == (VOCABULARY + 1, VOCABULARY)
    plain, *drafted = texts_at_every_k(tmp_path / "out.bundle", CONTEXT - 20)
    assert drafted == [plain, plain]
    with Engine(tmp_path / "out.bundle", slots=1) as engine:  # a prompt of the token that the draft does not know
        answers = [
            engine.generate([VOCABULARY, 5, VOCABULARY], max_new_tokens=20, temperature=temperature, seed=7, k=3)
            for temperature in (0.0, 1.0)
        ]
        assert all(len(answer.result().token_ids) > 0 for answer in answers)
        with pytest.raises(GenerationError, match="prompt: got 33 tokens, expected 1 to 32"):
            engine.score([5] * 33, model="draft")


def test_a_token_beyond_the_logits_is_masked(tmp_path: Path) -> None:
    recipe = write_unequal(tmp_path)
    for name in ("target", "draft"):
        random_model("llama", {**LLAMA, "hidden_size": 32, "vocab_size": VOCABULARY}).half().save_pretrained(
            tmp_path / name
        )
        add_token(tmp_path / name)
    done(recipe, "-o", tmp_path / "out.bundle")
    assert Bundle.open(tmp_path / "out.bundle").manifest.tokenizer.vocab_size == VOCABULARY
    with Engine(tmp_path / "out.bundle", slots=1) as engine, pytest.raises(GenerationError, match=f"{VOCABULARY}"):
        engine.generate("w1 <extra>")


def test_a_target_alone(tmp_path: Path) -> None:
    recipe = write_pair(tmp_path, "llama")
    recipe.write_text(recipe.read_text().split("[draft]")[0])
    done(recipe, "-o", tmp_path / "out.bundle")
    assert set(Bundle.open(tmp_path / "out.bundle").manifest.models) == {"target"}
    with Engine(tmp_path / "out.bundle", slots=1) as engine:
        assert len(engine.generate("w1 w2", max_new_tokens=5, ignore_eos=True).result().token_ids) == 5
        with pytest.raises(GenerationError, match="the bundle holds no draft"):
            engine.generate("w1", drafter="model")
        with pytest.raises(GenerationError, match="no n-gram tables; compile it with --ngram TEXT"):
            engine.generate("w1", drafter="ngram")
        assert engine.generate("w1", k=3, max_new_tokens=5).result().statistics.drafter == "suffix"
