"""The script that trains the encoder-decoder pair: its task has one right answer, and a model of its kind learns."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

SCRIPT = Path(__file__).resolve().parents[2] / "recipes" / "seq2seq" / "train.py"


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
def test_a_first_line_has_one_skeleton(source: str, text: str, script: ModuleType) -> None:
    (node,) = ast.parse(f"{source}\n    pass").body
    function = script.read_function(node)
    assert function.source == source
    assert function.text == text


def test_training_functions_can_be_parsed_and_are_not_held_out(script: ModuleType) -> None:
    files, held_out = script.library_files(script.HELD_OUT)
    functions = script.functions_of(files[:40])
    examples = script.SignatureExamples(functions)
    made = examples.batch(7, 60)
    assert made == examples.batch(7, 60)
    assert made != examples.batch(8, 60)
    assert any(function not in functions for function in made), "half are of different functions' parameters"
    for function in made:
        (node,) = ast.parse(f"{function.source}\n    pass").body
        assert script.read_function(node) == function
    assert not set(script.functions_of(held_out[:3])) & set(examples.batch(0, 60))


def test_two_steps_of_a_tiny_model(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = script.library_files(script.HELD_OUT)
    monkeypatch.setattr(script, "library_files", lambda held_out: (files[0][:10], files[1][:2]))
    script.main(["tokenizer", "--work", str(tmp_path)], standalone_mode=False)
    tokenizer = script.load_tokenizer(tmp_path)
    ids = tokenizer("def f(a):").input_ids
    assert tokenizer.decode(ids) == "def f(a):</s>"
    schedule = replace(script.SCHEDULE, batch=4, warmup_steps=1)
    tiny = replace(script.DRAFT, hidden_size=32, intermediate_size=48, encoder_layers=1, schedule=schedule)
    script.train("draft", tiny, tmp_path, 2, "cpu")
    (line,) = (tmp_path / "draft.log.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 2
    state = torch.load(tmp_path / "draft.state.pt")["model"]
    torch.manual_seed(0)
    before = AutoModelForSeq2SeqLM.from_config(tiny.config(tokenizer.vocab_size)).state_dict()
    assert all(not torch.equal(state[name], before[name]) for name in before if before[name].ndim == 2)


def test_an_exact_match_is_one_to_the_last_token(script: ModuleType) -> None:
    right, wrong = (
        script.Signature("f", (script.SignatureParameter("a"),)),
        script.Signature("g", (script.SignatureParameter("b"),)),
    )

    class Model:
        device = "cpu"

        def eval(self) -> None: ...
        def train(self) -> None: ...
        def generate(self, **_: object) -> list[str]:
            return [right.text, wrong.text + " and more"]

    class Tokenizer:
        def batch_decode(self, texts: list[str], **_: object) -> list[str]:
            return texts

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "make_batch", lambda *_: {"labels": torch.zeros(2, 9)})
        assert script.exact_matches(Model(), Tokenizer(), [right, wrong]) == 0.5
