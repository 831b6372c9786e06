"""The pairs that the laboratory trains: their tasks, their sizes, and that a model of each kind learns."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from bench.pairs import skeletons, source_code, train
from bench.pairs.skeletons import Function, FunctionExamples, Skeletons, functions_of, read_function, t5
from bench.pairs.source_code import SourceCode, library_files, llama
from bench.pairs.train import ModelPlan, train_tokenizer

RECIPES = Path(__file__).resolve().parents[3] / "recipes"


def function(source: str) -> Function:
    (node,) = ast.parse(f"{source}\n    pass").body
    assert isinstance(node, ast.FunctionDef)
    return read_function(node)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def f(a):", "f.\n\nArgs:\n    a:"),
        (
            "def get(self, key, default=None, *args, strict: bool = False, **kwargs) -> dict[str, int]:",
            "get.\n\nArgs:\n    key:\n    default: Defaults to None.\n    *args:\n"
            "    strict (bool): Defaults to False.\n    **kwargs:\n\nReturns:\n    dict[str, int]:",
        ),
        ("def put(x, /, y=1, *, z):", "put.\n\nArgs:\n    x:\n    y: Defaults to 1.\n    z:"),
        ("def now(cls) -> float:", "now.\n\nReturns:\n    float:"),
    ],
)
def test_a_first_line_has_one_skeleton(source: str, text: str) -> None:
    assert (function(source).source, function(source).text) == (source, text)


def test_training_functions_can_be_parsed_and_are_not_held_out() -> None:
    files, held_out = library_files()
    functions = functions_of(files[:40])
    examples = FunctionExamples(functions)
    made = examples.batch(7, 60)
    assert made == examples.batch(7, 60)
    assert made != examples.batch(8, 60)
    assert any(one not in functions for one in made), "half are of different functions' parameters"
    assert [function(one.source) for one in made] == made
    assert not set(functions_of(held_out[:3])) & set(examples.batch(0, 60))


@pytest.mark.parametrize("pair", train.PAIRS)
def test_models_have_the_parameters_that_the_readme_says(pair: str) -> None:
    _, plans = train.PAIRS[pair]
    for plan in plans.values():
        with torch.device("meta"):
            kind = AutoModelForSeq2SeqLM if plan.config.is_encoder_decoder else AutoModelForCausalLM
            count = sum(parameter.numel() for parameter in kind.from_config(plan.config).parameters())
        assert f"{count:,}" in (RECIPES / pair / "README.md").read_text()


@pytest.mark.parametrize("task", [SourceCode, Skeletons])
def test_two_steps_of_a_tiny_model(task: type[train.Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = library_files()
    for module in (source_code, skeletons):
        monkeypatch.setattr(module, "library_files", lambda: (files[0][:10], files[1][:2]))
    monkeypatch.setattr(source_code, "CONTEXT", 16)
    monkeypatch.setattr(train, "WARMUP_STEPS", 1)
    tiny = ModelPlan(t5(32, 48, 1, 1, heads=2) if task is Skeletons else llama(32, 48, 1, 4, 4), 4, 6e-3)
    train_tokenizer(task, 1024, tmp_path)
    corpus = task(tmp_path, "cpu")
    torch.manual_seed(0)
    before = corpus.build(tiny.config).state_dict()
    train.train("draft", tiny, corpus, 2, tmp_path)
    (line,) = (tmp_path / "draft.log.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 2
    state = torch.load(tmp_path / "draft.state.pt")["model"]
    assert all(not torch.equal(state[name], before[name]) for name in before if before[name].ndim == 2)
    assert {"model.safetensors", "tokenizer.json"} <= {file.name for file in (tmp_path / "draft").iterdir()}


def test_an_exact_match_is_one_to_the_last_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = library_files()
    monkeypatch.setattr(skeletons, "library_files", lambda: (files[0][:10], files[1][:2]))
    train_tokenizer(Skeletons, 1024, tmp_path)
    task = Skeletons(tmp_path, "cpu")
    task.held_out = [function("def f(a):"), function("def g(b):")]
    assert task.tokenizer.decode(task.tokenizer("def f(a):").input_ids) == "def f(a):</s>"

    class Writer:
        def generate(self, **_: object) -> list[list[int]]:
            return [task.tokenizer(text).input_ids for text in (task.held_out[0].text, task.held_out[1].text + " more")]

    assert task.measure(Writer()) == {"held_out_exact": 0.5}
