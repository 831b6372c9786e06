"""speccompile --ngram and --suffix: from texts to what drafters of the bundle guess by."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from mxspec.compile import guesses
from mxspec.compile.guesses import count_ngrams
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError
from mxspec.formats.safetensors_file import map_arrays
from mxspec.runtime.engine import Engine
from tests.compile.commands.test_speccompile import done, speccompile, write_pair

NAMES = ("ngram", "suffix")
WORDS = " ".join(f"w{number % 7} w{number % 5}" for number in range(200)) + "\n"


def test_texts_become_tables_and_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "PIECE", 100)  # so that several are encoded
    text = tmp_path / "text.txt"
    text.write_text(WORDS * 3)
    recipe = write_pair(tmp_path, "llama", ngram="text.txt")
    result = done(recipe, "-o", tmp_path / "out.bundle", "--suffix", text, "--json")
    sha256 = hashlib.sha256(text.read_bytes()).hexdigest()
    tokenizer = Tokenizer.from_file(str(tmp_path / "target" / "tokenizer.json"))
    tokens = tokenizer.encode(WORDS * 3, add_special_tokens=False).ids
    assert json.loads(result.stdout)["guesses"] == {
        name: {"file": f"{name}.safetensors", "text_sha256": sha256, "tokens": len(tokens)} for name in NAMES
    }
    bundle = Bundle.open(tmp_path / "out.bundle")
    bundle.verify()
    assert bundle.guesses_path("suffix") == tmp_path / "out.bundle" / "suffix.safetensors"
    assert map_arrays(tmp_path / "out.bundle" / "suffix.safetensors")["tokens"].tolist() == tokens
    expected = count_ngrams(np.array(tokens, np.int32), bundle.manifest.tokenizer.vocab_size)
    found = map_arrays(tmp_path / "out.bundle" / "ngram.safetensors")
    assert found.keys() == expected.keys()
    assert all((found[name] == array).all() for name, array in expected.items())
    with Engine(bundle.path, slots=1) as engine:
        answers = [engine.generate("w3 w1 w4", drafter=name, k=3, max_new_tokens=9).result() for name in NAMES]
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].statistics.drafted > 0
    (bundle.path / "suffix.safetensors").write_bytes((bundle.path / "ngram.safetensors").read_bytes())
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    manifest["files"]["suffix.safetensors"] = manifest["files"]["ngram.safetensors"]
    (bundle.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=r"out.bundle: corpus: expected tokens and as many ends"):
        Engine(bundle.path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "ngram: .*text.txt: No such file or directory"),
        (b"\xff\xfe", "ngram: .*text.txt is not text in UTF-8"),
        (b" \n", "ngram: .*text.txt holds no text"),
    ],
)
def test_files_that_are_not_text_are_refused(tmp_path: Path, content: bytes | None, says: str) -> None:
    recipe, text = write_pair(tmp_path, "llama"), tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    result = speccompile(recipe, "-o", tmp_path / "out.bundle", "--ngram", text)
    assert result.exit_code == 1
    assert not (tmp_path / "out.bundle").exists()
    assert re.search(says, result.output.replace("\n", ""))
