"""Checkpoints without a tokenizer.json: what is made speaks as a few lines of byte-level BPE, and sentencepiece, do."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.make_tokenizer import SAMPLE, make_tokenizer
from mxspec.compile.checkpoint.settings.config import load_config
from mxspec.formats.errors import MxspecError

TEXTS = ["def f(x):\n\treturn x ** 2  # a  comment", "Größe, naïve — 你好, 12345 times!", "a\n\n  b", "it's"]
CORPUS = [*SAMPLE.split("\n"), *Path(__file__).read_text(encoding="utf-8").splitlines()]


def write(folder: Path, model_type: str, tokenizer: dict[str, Any] | None = None) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if tokenizer is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder


def make(folder: Path) -> Tokenizer:
    return Tokenizer.from_str(make_tokenizer(folder, load_config(folder)))


def refused(folder: Path) -> str:
    with pytest.raises(MxspecError) as caught:
        make(folder)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.fixture
def byte_level(tmp_path: Path) -> Path:
    """vocab.json and merges.txt of a GPT-2."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator(CORPUS, trainer)
    trained.model.save(str(tmp_path))
    return write(tmp_path, "gpt2")


def sentencepiece(folder: Path, **settings: Any) -> Path:
    """tokenizer.model of a Llama."""
    settings = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 420, "character_coverage": 1.0} | settings
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_prefix=str(folder / "tokenizer"),
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    return write(folder, "llama", {"tokenizer_class": "LlamaTokenizer"})


def plain_bpe(folder: Path, text: str) -> list[int]:
    """The word's neighbours of the lowest rank are merged until none is in merges.txt (Sennrich et al., 2016)."""
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    ranks = {tuple(line.split()): rank for rank, line in enumerate(lines) if not line.startswith("#version")}
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    ids = []
    for word, _ in pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text):
        parts = list(word)
        while known := [pair for pair in pairwise(parts) if pair in ranks]:
            best = min(known, key=ranks.__getitem__)
            at = next(i for i, pair in enumerate(pairwise(parts)) if pair == best)
            parts[at : at + 2] = ["".join(best)]
        ids += [vocab[part] for part in parts]
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_vocabulary_and_merges(byte_level: Path, text: str) -> None:
    made = make(byte_level)
    assert made.encode(text).ids == plain_bpe(byte_level, text)
    assert made.decode(made.encode(text).ids) == text


def test_added_tokens_are_taken_along(byte_level: Path) -> None:
    (byte_level / "added_tokens.json").write_text('{"<|user|>": 500}')
    assert make(byte_level).encode("<|user|>a").ids[0] == 500


def test_pieces(tmp_path: Path) -> None:
    made, original = make(sentencepiece(tmp_path)), SentencePieceProcessor(str(tmp_path / "tokenizer.model"))
    for text in TEXTS:
        assert made.encode(text, add_special_tokens=False).ids == original.encode(text)
    write(tmp_path, "llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True})
    assert make(tmp_path).encode("a").ids[0] == original.bos_id()


def test_pieces_of_t5(tmp_path: Path) -> None:
    settings = {"model_type": "unigram", "vocab_size": 300, "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_prefix=str(tmp_path / "spiece"), minloglevel=2, **settings
    )
    made, original = make(write(tmp_path, "t5")), SentencePieceProcessor(str(tmp_path / "spiece.model"))
    for text in TEXTS:
        assert made.encode(text).ids == [*original.encode(text), original.eos_id()]
    assert made.encode("<extra_id_0>", add_special_tokens=False).ids == [399]


def test_a_class_that_reads_the_pieces_in_another_way(tmp_path: Path) -> None:
    folder = sentencepiece(tmp_path, model_type="unigram", vocab_size=300, byte_fallback=False)
    assert "tokenizer.model" in refused(folder)


def test_a_class_that_ignores_an_existing_tensor(byte_level: Path) -> None:
    write(byte_level, "llama")
    assert "transformers cannot make one" in refused(byte_level)
    write(byte_level, "llama", {"tokenizer_class": "LlamaTokenizer"})
    assert "tokens of vocab.json" in refused(byte_level)


def test_nothing_to_make_it_of(tmp_path: Path) -> None:
    assert "no tokenizer.json" in refused(write(tmp_path, "llama"))
    (tmp_path / "vocab.json").write_text("{}")
    assert "neither tokenizer.model nor vocab.json with merges.txt" in refused(tmp_path)


def test_no_fast_form(byte_level: Path) -> None:
    assert "CTRLTokenizer" in refused(write(byte_level, "ctrl", {"tokenizer_class": "CTRLTokenizer"}))


@pytest.mark.parametrize(("file", "text"), [("vocab.json", "{"), ("vocab.json", "[]"), ("merges.txt", "a b c\nd")])
def test_damaged_files(byte_level: Path, file: str, text: str) -> None:
    (byte_level / file).write_text(text)
    assert str(byte_level) in refused(byte_level)


def test_a_damaged_model(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a\xff\xff")
    assert str(tmp_path) in refused(write(tmp_path, "llama", {"tokenizer_class": "LlamaTokenizer"}))


@pytest.mark.parametrize("content", [b"", b"\x0a\x0e\x0a\x05<unk>\x15"])
def test_a_model_cut_short_is_named(tmp_path: Path, content: bytes) -> None:
    (write(tmp_path, "llama") / "tokenizer.model").write_bytes(content)
    assert "tokenizer.model is cut short, or no sentencepiece model" in refused(tmp_path)


def test_code_of_the_checkpoint_is_not_run(byte_level: Path) -> None:
    (byte_level / "own.py").write_text("raise SystemExit(3)")
    write(byte_level, "gpt2", {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}})
    assert "transformers cannot make one" in refused(byte_level)


def test_a_checkpoint_has_it_as_a_file(byte_level: Path) -> None:
    from safetensors.numpy import save_file

    save_file({}, byte_level / "model.safetensors")
    with Checkpoint(byte_level) as checkpoint:
        path = checkpoint.tokenizer
        assert path.name == "tokenizer.json"
        assert path.parent != byte_level
        assert Tokenizer.from_file(str(path)).encode(TEXTS[0]).ids == plain_bpe(byte_level, TEXTS[0])
        assert "no tokenizer.json" in checkpoint.notes[0]
    assert not path.exists()
