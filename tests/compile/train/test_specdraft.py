"""What `specdraft train` refuses, each in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mxspec.compile.commands.specdraft import main
from tests.compile.commands.test_speccompile import failed
from tests.compile.heads.make_head import TARGET_LOGITS, save_head
from tests.conftest import save_checkpoint, save_t5


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("specdraft") / "target", seed=5, logits=TARGET_LOGITS, layers=6)


def refused(target: Path, output: Path, *options: object) -> str:
    words = ["train", str(target), "-o", str(output), *map(str, options)]
    line = failed(CliRunner().invoke(main, words))
    assert not output.with_name(f"{output.name}.partial").exists()
    return line


def test_targets_that_have_no_use_for_a_head(target: Path, tmp_path: Path) -> None:
    assert "which EAGLE-3 heads do not support" in refused(save_t5(tmp_path / "t5", seed=1), tmp_path / "x")
    assert "name the target" in refused(save_head(tmp_path / "head"), tmp_path / "x")
    assert "no directory" in refused(tmp_path / "none", tmp_path / "x")


def test_files_that_give_too_little(target: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.txt"
    few.write_text("one line\n")
    assert "few.txt: got 1 prompts, one a line, expected at least 10" in refused(
        target, tmp_path / "x", "--prompts", few
    )
    assert "few.txt: got 9 tokens, expected at least" in refused(target, tmp_path / "x", "--text", few)
    assert "none.txt: No such file" in refused(target, tmp_path / "x", "--text", tmp_path / "none.txt")
    assert "got both --text and --prompts" in refused(target, tmp_path / "x", "--text", few, "--prompts", few)


def test_heads_of_other_targets_and_of_their_own_words(target: Path, tmp_path: Path) -> None:
    assert "no such folder" in refused(target, tmp_path / "x", "--from", tmp_path / "none")
    assert "is not an EAGLE-3 head" in refused(target, tmp_path / "x", "--from", target)
    other = save_head(tmp_path / "other", target_width=32, own_embedding=True)
    assert "the head belongs to another target" in refused(target, tmp_path / "x", "--from", other)
    own = save_head(tmp_path / "own", own_embedding=True)
    assert "has an embedding of its own" in refused(target, tmp_path / "x", "--from", own)


def test_places_that_are_taken_or_empty(target: Path, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    assert "taken exists; choose another place with -o" in refused(target, taken)
    assert "taken exists and is not a head" in refused(target, taken, "--force")
    assert "nothing was interrupted; leave it out" in refused(target, tmp_path / "x", "--resume")
