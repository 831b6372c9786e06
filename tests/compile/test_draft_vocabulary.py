"""Drafts with few tokens, or with those of another tokenizer: from checkpoints to text."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file as load_numpy
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mxspec.compile.vocabulary import draft_vocabulary
from mxspec.compile.weights.calibration_text import write_calibration_text
from mxspec.compile.weights.rounding import round_model
from mxspec.evaluate.logits import measure_logits
from mxspec.evaluate.lossless.command import certify
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError
from mxspec.formats.manifest import Manifest, ModelEntry, VocabularyEntry
from mxspec.formats.tiles import unpack_values
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.engine import Engine
from mxspec.runtime.models.draft_tokens import DraftTokens
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from tests.compile.commands.test_speccompile import done, failed, speccompile
from tests.conftest import BOS, END, EOS, VOCAB, make_byte_tokenizer, save_checkpoint

KEPT = 48
TEXT = "a text that repeats what it says, and says what it repeats; a text that says so. " * 40
SPECIAL = {"<s>": BOS, "<eos>": EOS, "<end>": END}
MERGES = ("th", "he", "at", "says", "é", " t")  # tokens that the target does not have


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and a draft with the same tokens that is often right; a text."""
    folder = tmp_path_factory.mktemp("pair")
    save_checkpoint(folder / "target", seed=5, logits=272)
    save_checkpoint(folder / "draft", seed=5, logits=264, noise=0.02)
    (folder / "text.txt").write_text(TEXT)
    return folder


def write_foreign(pair: Path, folder: Path) -> Path:
    """The draft with another tokenizer, whose ids are in another order."""
    shutil.copytree(pair / "draft", folder)
    given = json.loads(make_byte_tokenizer().to_str())["model"]["vocab"]
    order = np.random.default_rng(7).permutation(VOCAB - 3 + len(MERGES))
    vocab = {letter: int(order[byte]) for letter, byte in given.items()}
    of = {byte: vocab[letter] for letter, byte in given.items()}
    for place, merge in enumerate(MERGES):
        written = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(merge)[0][0]
        vocab[written] = int(order[VOCAB - 3 + place])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    of |= {number: int(tokenizer.token_to_id(name)) for name, number in SPECIAL.items()}
    config = json.loads((folder / "config.json").read_text())
    config |= {"bos_token_id": of[BOS], "eos_token_id": [of[EOS], of[END]], "vocab_size": 280}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = tensors[name]
        moved = 0.1 * rows.mean() * rows.new_ones(280, rows.shape[1])
        for ours, theirs in of.items():
            moved[theirs] = rows[ours]
        tensors[name] = moved
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def foreign_draft(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign(pair, tmp_path_factory.mktemp("foreign") / "draft")


def compiled(pair: Path, output: Path, *options: object, draft: Path | None = None) -> Bundle:
    both = (pair / "target", "--draft", draft or pair / "draft")
    done(*both, "-o", output, "--k-max", 4, "--context-length", 96, *options)
    return Bundle.open(output)


def texts_of(bundle: Path, **settings: Any) -> list[Any]:
    """Answers at K = 0 and at K = 1 and 4."""
    with Engine(bundle, slots=2) as engine:
        request = {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True, **settings}
        return [engine.generate("a text that says ", k=k, **request).result() for k in (0, 1, 4)]


def assert_lossless(bundle: Path) -> float:
    """Greedy texts and texts by sample-and-match are the target's own; the acceptance of the longest rounds."""
    for settings in ({}, {"repetition_penalty": 1.2}, {"temperature": 1.0, "seed": 3, "verifier": "match"}):
        plain, *drafted = texts_of(bundle, **settings)
        assert [answer.token_ids for answer in drafted] == [plain.token_ids] * 2
    with Engine(bundle, slots=2) as engine:
        assert len(engine.generate("é", k=4, temperature=1.0, seed=3, max_new_tokens=30).result().token_ids) > 0
        beams = [engine.generate("a text", beams=2, k=k, max_new_tokens=8).result().token_ids for k in (0, 2)]
        assert beams[0] == beams[1]
    counted = texts_of(bundle)[-1].statistics
    return float(counted.accepted / counted.evaluated)


@pytest.fixture(scope="module")
def trimmed(pair: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    place = tmp_path_factory.mktemp("trimmed") / "out.bundle"
    return compiled(pair, place, "--draft-vocabulary", KEPT, "--draft-text", pair / "text.txt")


@pytest.fixture(scope="module")
def foreign(pair: Path, foreign_draft: Path) -> Bundle:
    return compiled(pair, foreign_draft.with_name("foreign.bundle"), draft=foreign_draft)


@pytest.fixture(scope="module")
def written(pair: Path, foreign_draft: Path) -> Bundle:
    """A draft with another tokenizer that writes text."""
    return compiled(pair, foreign_draft.with_name("written.bundle"), "--draft-tokens", "text", draft=foreign_draft)


@pytest.fixture(params=["trimmed", "foreign", "written"])
def any_bundle(request: pytest.FixtureRequest) -> Bundle:
    bundle: Bundle = request.getfixturevalue(request.param)
    return bundle


def entry_of(bundle: Bundle) -> ModelEntry:
    return bundle.manifest.models["draft"]


def vocabulary_of(bundle: Bundle) -> VocabularyEntry:
    vocabulary = entry_of(bundle).vocabulary
    assert vocabulary is not None
    return vocabulary


def test_a_trimmed_head_keeps_the_rows_of_frequent_tokens(pair: Path, trimmed: Bundle) -> None:
    ids = make_byte_tokenizer().encode(TEXT).ids
    frequent = [token for token, _ in Counter(ids[: -(len(ids) // 10)]).most_common()]
    lowest = [token for token in range(VOCAB) if token not in frequent]
    expected = sorted([EOS, END, *frequent, *lowest][:KEPT])
    tensors = load_file(pair / "draft" / "model.safetensors")
    (head,) = [tensor for tensor in entry_of(trimmed).tensors if tensor.name == "lm_head.weight"]
    stored = np.fromfile(trimmed.weights_path("draft"), np.uint8, head.bytes, offset=head.offset)
    rows = unpack_values(stored.reshape(-1, 1024 * 2), head.format, KEPT, 64)
    np.testing.assert_array_equal(rows, tensors["lm_head.weight"][expected].float().numpy())
    vocabulary = vocabulary_of(trimmed)
    assert (vocabulary.reads, vocabulary.foreign, vocabulary.shared) == (VOCAB, False, None)
    assert vocabulary.tokens == len(ids) // 10
    assert vocabulary.covered == 1.0
    assert entry_of(trimmed).vocab_size == KEPT


def head_ids(bundle: Bundle) -> list[int]:
    ids: list[int] = load_numpy(bundle.path / vocabulary_of(bundle).file)["head_ids"].tolist()
    return ids


def test_without_a_text_the_target_writes_one(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(*arguments: Any) -> Any:
        written.append(write_calibration_text(*arguments))
        return written[-1]

    for module in (draft_vocabulary, round_model):
        monkeypatch.setattr(module, "write_calibration_text", write)
    bundle = compiled(pair, tmp_path / "own.bundle", "--draft-vocabulary", KEPT, "--calibration-tokens", 2000)
    (first, *others) = (windows.reshape(-1) for windows in written)
    assert all(np.array_equal(first, other) for other in others)  # that calibrates rounding
    vocabulary = vocabulary_of(bundle)
    held_out = first[-(len(first) // 10) :]
    assert (vocabulary.text_sha256, vocabulary.tokens) == (None, len(held_out))
    frequent = [EOS, END, *(token for token, _ in Counter(first[: -len(held_out)].tolist()).most_common())]
    assert len(frequent) > KEPT
    counts = Counter(first[: -len(held_out)].tolist())
    kept = set(head_ids(bundle))
    assert min(counts[token] for token in kept - {EOS, END}) >= max(counts[token] for token in set(counts) - kept)
    assert vocabulary.covered == pytest.approx(np.isin(held_out, list(kept)).mean())
    assert_lossless(bundle.path)


def test_without_time_for_a_text_the_lowest_ids_are_kept(pair: Path, tmp_path: Path) -> None:
    bundle = compiled(pair, tmp_path / "low.bundle", "--draft-vocabulary", KEPT, "--rounding-minutes", 0)
    lowest = [token for token in range(VOCAB) if token not in (EOS, END)]
    assert head_ids(bundle) == sorted([EOS, END, *lowest[: KEPT - 2]])
    assert vocabulary_of(bundle) == VocabularyEntry(file="draft_tokens.safetensors", reads=VOCAB)


def test_a_trimmed_draft_changes_no_text(trimmed: Bundle) -> None:
    assert assert_lossless(trimmed.path) > 0.02


@pytest.mark.parametrize("command", ["inspect", "--json"])
def test_inspect_says_what_is_kept(trimmed: Bundle, command: str) -> None:
    found = speccompile("inspect", trimmed.path, *(["--json"] if command == "--json" else []))
    assert found.exit_code == 0, found.output
    if command == "--json":
        assert json.loads(found.stdout)["models"]["draft"]["vocabulary"]["covered"] == 1.0
    else:
        said = f"  proposes {KEPT} tokens, 100.0% of the {len(TEXT) // 10} held-out tokens of its text"
        assert said in (found.stdout + found.stderr).splitlines()


def logits_of(bundle: Bundle) -> Any:
    """The draft's logits for the target's tokens, after each token of a text that is read in two pieces."""
    session, tokens = Session.of(bundle, "draft", 1), [BOS, *b"a text that says ", 233, END, 7]
    first = session.run([Part(0, 0, tokens[:9], 9)]).copy()
    session.run([Part(0, 9, [1, 2, 3], 1)])  # rolled back
    return np.concatenate([first, session.run([Part(0, 9, tokens[9:], len(tokens) - 9)])])


def test_another_tokenizers_tokens_are_mapped_by_their_bytes(
    pair: Path, tmp_path: Path, trimmed: Bundle, foreign: Bundle, foreign_draft: Path
) -> None:
    """The draft has the same weights as the trimmed one, in other places: its logits are the same, bit for bit."""
    assert vocabulary_of(foreign).foreign
    assert vocabulary_of(foreign).shared == pytest.approx(256 / (256 + len(MERGES)))
    assert entry_of(foreign).vocab_size == VOCAB
    expected = logits_of(trimmed)
    kept = np.isfinite(expected[0])
    assert kept.sum() == KEPT
    np.testing.assert_array_equal(logits_of(foreign)[:, kept], expected[:, kept])
    assert assert_lossless(foreign.path) > 0.5
    few = compiled(pair, tmp_path / "few.bundle", "--draft-vocabulary", KEPT, draft=foreign_draft)
    assert entry_of(few).vocab_size == KEPT
    assert_lossless(few.path)


def test_a_target_with_tokens_that_the_draft_lacks(pair: Path, tmp_path: Path) -> None:
    """The target writes them, and the draft reads each as several of its own."""
    target = write_foreign(pair, tmp_path / "target")
    vocab = Tokenizer.from_file(str(target / "tokenizer.json")).get_vocab()
    bias = {vocab[written]: 12.0 for written in ("th", "says", "Ã©")}
    bundle = compiled(tmp_path, tmp_path / "out.bundle", draft=pair / "draft")
    assert assert_lossless(bundle.path) > 0.02
    plain, *drafted = texts_of(bundle.path, logit_bias=bias)
    assert set(plain.token_ids) & bias.keys()
    assert [answer.token_ids for answer in drafted] == [plain.token_ids] * 2


def test_its_logits_are_those_of_its_checkpoint(pair: Path, any_bundle: Bundle, foreign_draft: Path) -> None:
    checkpoint = foreign_draft if vocabulary_of(any_bundle).foreign else pair / "draft"
    for text in (None, TEXT):
        assert measure_logits(any_bundle, "draft", Recipe.of_checkpoints(str(checkpoint)), text, 40).passed


def test_it_is_certified(any_bundle: Bundle) -> None:
    """With greedy and sampled text of every way, and a grammar that allows no token that the trimmed draft keeps."""
    with Engine(any_bundle.path, slots=8) as engine:
        found = certify(engine, None, "quick", seed=1)
    assert found.passed, found.failures
    assert found.power[0].texts.startswith("sampled text")


def test_a_draft_that_writes_text_changes_none(written: Bundle) -> None:
    assert vocabulary_of(written).writes_text
    assert entry_of(written).vocab_size == 280  # the whole head
    assert assert_lossless(written.path) > 0.2
    said = speccompile("inspect", written.path)
    line = "  writes text, with a tokenizer of its own, which shares 97.7% of its tokens with the target's"
    assert line in (said.stdout + said.stderr).splitlines()


def test_the_share_of_its_tokens_decides_what_it_proposes(
    pair: Path, tmp_path: Path, foreign_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Any] = [pair / "target", "--draft", foreign_draft, "-o", tmp_path / "x", "--force"]

    def way(*options: object) -> str:
        result = done(*wanted, "--k-max", 4, "--context-length", 96, *options)
        notes = (line for line in result.output.split("target and draft ") if line.startswith("have different"))
        return " ".join(next(notes).split("\n\n")[0].split())

    tli = "it proposes the 259 tokens that both have (--draft-tokens tli), by its share"
    text = "it writes text in its own, which the target's tokenizer encodes (--draft-tokens text), by its share"
    assert f"the target has 97.7% of the draft's tokens, and {tli}" in way()
    monkeypatch.setattr("mxspec.compile.vocabulary.draft_vocabulary.MOSTLY_SHARED", 0.98)
    assert f"the target has 97.7% of the draft's tokens, and {text}" in way()
    assert f"100.0% of those of the text, and {tli}" in way("--draft-text", pair / "text.txt")


def test_its_matrices_are_rounded_to_nearest_beside_a_calibrated_target(pair: Path, tmp_path: Path) -> None:
    gptq = ("--rounding", "gptq", "--calibrate", pair / "text.txt", "--draft-format", "mxfp6_e3m2")
    models = compiled(pair, tmp_path / "x.bundle", "--draft-vocabulary", 9, *gptq).manifest.models
    target, draft = models["target"].rounding, models["draft"].rounding
    assert target is not None
    assert target.nearest == {}
    assert draft is not None
    assert set(draft.nearest.values()) == {"the draft's head has other rows than the checkpoint's"}


def test_a_damaged_bundle_is_refused(trimmed: Bundle) -> None:
    manifest = json.loads((trimmed.path / "manifest.json").read_text())
    vocabulary = manifest["models"]["draft"]["vocabulary"]

    def refused(model: str, **changed: object) -> str:
        broken = json.loads(json.dumps(manifest))
        broken["models"]["draft"]["vocabulary"] = None  # its file belongs to one model
        broken["models"][model]["vocabulary"] = {**vocabulary, **changed}
        with pytest.raises(BundleError) as caught:
            Manifest.parse(json.dumps(broken).encode())
        return str(caught.value)

    assert "models.target: has a vocabulary, which only drafts without an encoder may have" in refused("target")
    assert "models.draft.vocabulary: file 'x' is not in files" in refused("draft", file="x")
    assert "file 'draft.onnx' already belongs to draft" in refused("draft", file="draft.onnx")
    assert "reads" in refused("draft", reads=0)
    assert "vocabulary" not in manifest["models"]["target"]
    with pytest.raises(BundleError, match="head_ids has 48 ids for a head of 47 rows"):
        DraftTokens.of(trimmed.path, entry_of(trimmed).model_copy(update={"vocab_size": KEPT - 1}), VOCAB)


def test_what_is_refused(pair: Path, tmp_path: Path, foreign_draft: Path) -> None:
    def refuse(*options: object, draft: Path | None = None) -> str:
        return failed(speccompile(pair / "target", "--draft", draft or pair / "draft", "-o", tmp_path / "x", *options))

    assert "draft.vocabulary: got 1, expected 2 to 259, the tokens that the draft" in refuse("--draft-vocabulary", 1)
    assert "draft.vocabulary: got 260, expected 2 to 259" in refuse("--draft-vocabulary", 260)
    line = refuse("--draft-tokens", "text")
    assert line == "error: draft.tokens: got 'text', but the draft has the target's tokens; leave it out"
    line = refuse("--draft-text", pair / "text.txt")
    assert (
        line == "error: draft.text: the draft keeps all tokens, the target's own; set draft.vocabulary, or leave it out"
    )
    line = refuse("--draft-tokens", "text", "--draft-vocabulary", 48, draft=foreign_draft)
    assert line == "error: draft.vocabulary: a draft that writes text keeps its whole head; leave it out"
    words = tmp_path / "words"
    shutil.copytree(pair / "draft", words)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.save(str(words / "tokenizer.json"))
    line = refuse(draft=words)
    assert "target and draft have different tokenizers" in line
    assert line.endswith("the tokens of the draft's tokenizer (WordLevel) are not bytes of the text")
    tokenizer = Tokenizer(models.BPE({f"w{i}": i for i in range(VOCAB)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(words / "tokenizer.json"))
    for way in ((), ("--draft-tokens", "text")):
        line = refuse(*way, draft=words)
        assert line.endswith("nor can they be mapped: no token of the draft has the bytes of a token of the target")
