"""speccheck on models with encoders: a perplexity as transformers has it, equal texts, refusals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mxspec import Engine
from mxspec.evaluate.speccheck import main

SOURCES = ["hello there", "", "abc def", "the quick brown fox jumps", "x"]
ANSWERS = ["there hello", "", "def abc", "jumps fox brown quick the", "x" * 64]


def speccheck(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> tuple[str, ...]:
    """The options that name the lines."""
    source, text = write_lines(tmp_path / "in.txt", SOURCES), write_lines(tmp_path / "out.txt", ANSWERS)
    return "--source", str(source), "--text", str(text)


def transformers_loss(checkpoint: Path, engine: Engine) -> tuple[float, int]:
    """The mean loss of the answers under their sources in float32, and of how many tokens."""
    import torch
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32).eval()
    total, tokens = 0.0, 0
    for source, answer in zip(SOURCES, ANSWERS, strict=True):
        if source:
            ids, labels = (torch.tensor([engine.encode(text)]) for text in (source, answer))
            with torch.no_grad():
                total += float(model(input_ids=ids, labels=labels).loss) * labels.shape[1]
            tokens += labels.shape[1]
    return total / tokens, tokens


def test_perplexity_of_given_answers_is_that_of_transformers(t5_bundle: Path, pairs: tuple[str, ...]) -> None:
    """Of the fp16 baseline, in float32 but for rounding; the packed target and another format stand beside it."""
    result = speccheck("accuracy", t5_bundle, *pairs, "--format", "mxint8", "--max-ratio", 1e9, "--json")
    assert result.exit_code == 2, "four answers are too few to judge by"
    found: dict[str, Any] = json.loads(result.stdout)
    with Engine(t5_bundle) as engine:
        loss, tokens = transformers_loss(t5_bundle.parent / "target", engine)
    assert (found["tokens"], found["documents"]) == (tokens, 4)
    assert math.log(found["baseline_perplexity"]) == pytest.approx(loss, abs=1e-4)
    (beside,) = found["beside"]
    assert beside["mean_kl_divergence"] < found["mean_kl_divergence"] / 2


def test_so_many_tokens_of_answers_are_scored(t5_bundle: Path, pairs: tuple[str, ...]) -> None:
    found = json.loads(speccheck("accuracy", t5_bundle, *pairs, "--max-tokens", 15, "--json").stdout)
    assert (found["tokens"], found["windows_begin_with"]) == (15, ["<bos>"])


@pytest.mark.parametrize(
    ("sources", "answers", "says"),
    [
        (["a", "b"], ["a"], "has 2 lines, --text {text} 1: expected a line for each"),
        (["a", ""], ["a", "b"], "--source {source}: line 2 is empty, and its partner is not"),
        (["a", "b" * 48], ["a", "b"], "got 49 tokens for {text}:2, expected at most 48, the context of the encoder"),
        (["a"], ["a" * 95], "got 96 tokens in {text}:1, expected at most 95, for which the context has room"),
        (["", ""], ["", ""], "holds no answers, expected a line for each source"),
    ],
)
def test_lines_that_cannot_be_pairs_are_refused(
    t5_bundle: Path, tmp_path: Path, sources: list[str], answers: list[str], says: str
) -> None:
    source, text = write_lines(tmp_path / "in.txt", sources), write_lines(tmp_path / "out.txt", answers)
    result = speccheck("accuracy", t5_bundle, "--source", source, "--text", text)
    assert result.exit_code == 1
    assert says.format(source=source, text=text) in result.stderr
    assert result.stderr.count("\n") == 1


def test_rows_of_tables_are_lines(t5_bundle: Path, tmp_path: Path, pairs: tuple[str, ...]) -> None:
    expected = json.loads(speccheck("accuracy", t5_bundle, *pairs, "--json").stdout)
    rows = [
        write_lines(tmp_path / name, [json.dumps({"t": line}) for line in lines])
        for name, lines in (("in.jsonl", SOURCES), ("out.jsonl", ANSWERS))
    ]
    found = json.loads(
        speccheck("accuracy", t5_bundle, "--source", rows[0], "--text", rows[1], "--field", "t", "--json").stdout
    )
    assert found["target_perplexity"] == expected["target_perplexity"]


def test_sources_go_with_encoders(
    t5_bundle: Path, demo_with_baseline: Path, tmp_path: Path, pairs: tuple[str, ...]
) -> None:
    for bundle, options, says in (
        (demo_with_baseline, pairs, "has an encoder to read it"),
        (t5_bundle, pairs[2:], "--source: got none, expected the files whose lines the encoder reads"),
        (t5_bundle, (*pairs, *pairs[:2]), "--source: got 2 files, expected 1, one for each --text"),
        (t5_bundle, (*pairs, "--window", "20"), "--window: is not supported for models with encoders"),
        (t5_bundle, (*pairs, "--join"), "--join: given with --source"),
    ):
        result = speccheck("accuracy", bundle, *options)
        assert result.exit_code == 1
        assert says in result.stderr


def test_a_pair_with_encoders_is_lossless(t5_bundle: Path) -> None:
    result = speccheck("lossless", t5_bundle, "--effort", "quick", "--only", "rows", "--only", "equality", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["passed"]
    assert all(equality["compared"] > 10 for equality in found["equalities"])
