"""`specrun --compare`: three columns, each the text that specrun writes alone, and a picture of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from mxspec.formats.errors import BundleError
from mxspec.runtime.cli.plain_console import shown
from mxspec.runtime.cli.settings import Defaults
from mxspec.runtime.commands import compare
from mxspec.runtime.commands.specrun import specrun
from mxspec.runtime.engine import Engine
from tests.conftest import compile_pair, save_checkpoint

PROMPT = ["a text", "--max-new-tokens", "24"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, each_model_compiled_once: None) -> Path:
    """A pair whose fp16 target lies beside the packed one."""
    folder = tmp_path_factory.mktemp("compare")
    target = save_checkpoint(folder / "target", seed=5, logits=272)
    draft = save_checkpoint(folder / "draft", seed=5, logits=264, noise=0.1)
    return compile_pair(folder, target, draft, with_baseline=True)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(specrun, list(map(str, arguments)))


def alone(bundle: Path, *options: str) -> list[int]:
    found: list[int] = json.loads(run(bundle, *PROMPT, "--json", *options).stdout)["token_ids"]
    return found


def test_columns_equal_the_texts_written_alone(bundle: Path) -> None:
    fixed = ("--k", "4")  # chosen by measured times, K may be 0 on a loaded machine
    report = json.loads(run(bundle, *PROMPT, "--compare", "--json", *fixed).stdout)
    fp16, plain, speculating = report["columns"]
    assert [c["column"] for c in report["columns"]] == ["fp16", "mxfp6_e2m3", "mxfp6_e2m3, speculating"]
    assert plain["token_ids"] == alone(bundle, "--k", "0")
    assert speculating["token_ids"] == plain["token_ids"]
    assert report["same_text"]
    with Engine(bundle, model="baseline") as engine:
        prompt = engine.encode("a text")
        answer = engine.generate(prompt, max_new_tokens=24, temperature=0, k=0).result()
        scored = [
            int(row.argmax()) for rows in engine.score(prompt + answer.token_ids, model="baseline") for row in rows
        ]
    assert fp16["token_ids"] == answer.token_ids == scored[len(prompt) - 1 : -1]
    assert (fp16["drafted"], plain["drafted"]) == (0, 0)
    assert speculating["drafted"] > 0
    assert [c["reused_tokens"] for c in report["columns"]] == [0, 0, 0]
    assert all(0 < c["time_to_first_token_s"] < 60 for c in report["columns"])


def test_the_table_and_the_picture_hold_the_texts(bundle: Path, tmp_path: Path) -> None:
    picture = tmp_path / "compare.svg"
    done = run(bundle, *PROMPT, "--compare", "--picture", picture)
    assert done.exit_code == 0, done.output
    assert done.stdout.count("tok/s") == 3
    assert "writes the same text with and without speculation" in done.stdout
    drawn = "".join(ElementTree.parse(picture).getroot().itertext())
    assert drawn.count("tok/s") == 3
    assert "mxfp6_e2m3, speculating" in drawn.replace("\xa0", " ")
    assert not re.search(r"url\(['\"]?http", picture.read_text()), "nothing from outside"


def test_without_a_baseline_there_are_two_columns(tiny_bundles: dict[str, Path]) -> None:
    report = json.loads(run(tiny_bundles["near"], *PROMPT, "--compare", "--json").stdout)
    assert [c["column"] for c in report["columns"]] == ["mxfp6_e2m3", "mxfp6_e2m3, speculating"]
    with pytest.raises(BundleError, match="--with-baseline"):
        Engine(tiny_bundles["near"], model="baseline")


def test_a_replay_shows_the_text_of_each_moment(bundle: Path) -> None:
    with compare.open_columns(bundle) as columns:
        recording = compare.write_column(
            columns[-1], Defaults({"temperature": 0}).request(columns[-1].engine, "a text")
        )
    times = [at for at, _ in recording.events]
    assert times == sorted(times)
    for at, _ in recording.tokens:
        written = compare._text(recording, at, None).plain
        assert written == shown("".join(token.text for when, token in recording.tokens if when <= at))
    assert compare._text(recording, None, None).plain == shown(recording.answer.text)
