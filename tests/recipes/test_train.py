"""The script that trains pairs: its named shapes have the sizes they should, and a model of each kind learns."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM

SCRIPT = Path(__file__).resolve().parents[2] / "recipes" / "demo" / "train.py"
CONTEXT, TOKENS = 16, 16 * 13


@pytest.fixture
def work(tmp_path: Path, script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an encoded corpus of a short context."""
    monkeypatch.setattr(script, "CONTEXT", CONTEXT)
    tokens = torch.randint(0, 64, (2, TOKENS), generator=torch.Generator().manual_seed(0)).to(torch.uint16)
    torch.save((tokens[0], tokens[1, : 3 * CONTEXT]), tmp_path / "corpus.pt")
    return tmp_path


@pytest.mark.parametrize(
    ("shape", "target", "draft"),
    [
        ("demo", 8_785_408, 918_144),
        ("wide-draft", 8_785_408, 4_326_912),
        ("lm1b", 98_425_344, 6_036_480),
    ],
)
def test_shapes_have_the_parameters_that_the_readme_says(
    shape: str, target: int, draft: int, script: ModuleType
) -> None:
    pair = script.SHAPES[shape]
    counted = []
    for plan in (pair.target, pair.draft):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(plan.config(pair.vocab_size))
        counted.append(sum(parameter.numel() for parameter in model.parameters()))
    assert counted == [target, draft]
    readme = (SCRIPT.parent / "README.md").read_text()
    assert all(f"{count:,}" in readme for count in counted)


def test_a_wide_draft_has_the_width_of_its_target_and_fewer_layers(script: ModuleType) -> None:
    pair = script.SHAPES["wide-draft"]
    assert replace(pair.draft, layers=pair.target.layers) == pair.target
    assert pair.draft.layers < pair.target.layers


@pytest.mark.parametrize("shape", ["wide-draft", "lm1b"])
def test_two_steps_of_a_tiny_cut(shape: str, script: ModuleType, work: Path) -> None:
    plan = script.SHAPES[shape].draft
    tiny = replace(
        plan,
        hidden_size=32,
        intermediate_size=48,
        layers=1,
        heads=4,
        kv_heads=4,
        schedule=script.Schedule(batch=4, warmup_steps=1),
    )
    script.train("draft", tiny, 64, work, epochs=2 * 4 * CONTEXT / TOKENS)
    (line,) = (work / "draft.log.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 2
    state = torch.load(work / "draft.state.pt")["model"]
    torch.manual_seed(0)
    before = AutoModelForCausalLM.from_config(tiny.config(64)).state_dict()
    assert all(not torch.equal(state[name], before[name]) for name in before if before[name].ndim == 2)
    assert AutoModelForCausalLM.from_pretrained(work / "draft").config.vocab_size == 64


def test_a_teacher_brings_no_code(
    script: ModuleType, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = tmp_path / "teacher"
    teacher.mkdir()
    (teacher / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}})
    )
    (teacher / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    asked: list[str] = []
    yes: Callable[[str], str] = lambda question="": asked.append(question) or "y"  # noqa: E731
    monkeypatch.setattr(builtins, "input", yes)
    plan = replace(script.SHAPES["demo"].draft, schedule=script.Schedule(batch=4, warmup_steps=1))
    with pytest.raises(ValueError, match="trust_remote_code"):
        script.train("draft", plan, 64, work, epochs=1.0, teacher=teacher)
    assert not asked
    assert not (tmp_path / "ran").exists()
