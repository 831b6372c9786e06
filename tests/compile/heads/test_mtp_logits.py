"""MTP layers of both families: their logits, and the target's states, are those of the formulas.

A wrong order, position or state changes no text and fails nowhere else: it only lowers acceptance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fit_head import fit_mtp
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.manifest import ModelName
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.drafters.draft import StatesDraft
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot
from tests.compile.heads.make_mtp import LOGITS, save_mtp
from tests.compile.heads.plain_mtp import PlainMtp
from tests.compile.heads.test_logits import close

CASES: dict[str, dict[str, Any]] = {
    "mimo": {"family": "mimo", "layers": 2},
    "glm": {"family": "glm4_moe"},
    "glm with tables of its own": {"family": "glm4_moe", "own_tables": True, "use_qk_norm": False},
}


def compiled(name: ModelName, checkpoint: Checkpoint, folder: Path, places: list[int]) -> Session:
    folder.mkdir()
    recipe = Recipe.of_checkpoints("x", "y").with_changes(caches="float32", target={"format": "fp16"})
    assert recipe.draft is not None
    plan = plan_model(Model(name, checkpoint, recipe.draft, recipe, 96, hidden_state_outputs=tuple(places)))
    return Session(folder, write_model(plan, folder, lambda count: None).entry, LOGITS, slots=3)


def target_of(folder: Path) -> PreTrainedModel:
    """transformers' model without the MTP layers; a MiMo is a Qwen2."""
    settings = json.loads((folder / "config.json").read_text())
    kinds = {"mimo": (Qwen2ForCausalLM, Qwen2Config), "glm4_moe": (Glm4MoeForCausalLM, Glm4MoeConfig)}
    model, config = kinds[settings.pop("model_type")]
    return model.from_pretrained(folder, config=config(**settings), dtype=torch.float32)  # type: ignore[no-any-return]


def states_of(model: PreTrainedModel, text: list[int], *, normed: bool) -> torch.Tensor:
    """What the target's final norm gives, or takes, of each token."""
    seen: dict[bool, torch.Tensor] = {}
    hook = model.model.norm.register_forward_hook(lambda _, given, found: seen.update({False: given[0], True: found}))
    with torch.no_grad():
        model(torch.tensor([text]))
    hook.remove()
    return seen[normed][0]


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_formulas(tmp_path: Path, case: str) -> None:
    settings: Mapping[str, Any] = CASES[case]
    folder = save_mtp(tmp_path / "target", **settings)
    plain, model = PlainMtp.read(folder), target_of(folder)
    with Checkpoint(folder) as of_target, Checkpoint(folder, mtp=True) as layer:
        fit_mtp(layer, of_target)
        session = compiled("draft", layer, tmp_path / "draft", [])
        giving = compiled("target", of_target, tmp_path / "giving", list(layer.config.hidden_state_outputs))
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 256, 40).tolist() for _ in range(2)]
    states = [states_of(model, text, normed=not plain.is_mimo) for text in texts]
    giving.run([Part(1, 0, texts[0], 1)])
    assert giving.given_states is not None
    assert close(giving.given_states.of(1, 0, 40), states[0])

    given = SimpleNamespace(of=lambda slot, first, count: states[slot - 1][first : first + count].numpy())
    draft = StatesDraft(session, SimpleNamespace(given_states=given))  # type: ignore[arg-type]
    slots = [Slot(1), Slot(2)]
    slots[0].target_length, slots[1].target_length = 20, 6
    draft.run([(slots[0], texts[0][:11], 0), (slots[1], texts[1][:1], 0)])  # pieces of the prompts
    guessed = rng.integers(0, 256, (2, 3)).tolist()
    for lengths in ([21, 7], [24, 12]):
        for slot, length in zip(slots, lengths, strict=True):
            slot.target_length = length - 1
        parts = list(zip(slots, texts, lengths, guessed, states, strict=True))
        expected = [plain.steps(text[:end], state, guesses) for _, text, end, guesses, state in parts]
        rows = draft.run([(slot, text[slot.draft_length : end], 1) for slot, text, end, _, _ in parts])
        for step in range(4):
            for row, steps in zip(rows, expected, strict=True):
                assert close(row, steps[step]), (case, lengths, step)
            if step < 3:
                rows = draft.run([(slot, [guesses[step]], 1) for slot, _, _, guesses, _ in parts])
        draft.settle(slots)


def test_another_state_is_seen_in_the_logits(tmp_path: Path) -> None:
    """The comparison itself: a state before the norm for one after it, or of a token beside, is far beyond it."""
    folder = save_mtp(tmp_path / "target", "glm4_moe")
    plain, model, text = PlainMtp.read(folder), target_of(folder), list(range(30))
    right, wrong = (states_of(model, text, normed=normed) for normed in (True, False))
    (expected,) = plain.steps(text, right, [])
    for states in (wrong, right.roll(1, 0), right.roll(-1, 0)):
        (got,) = plain.steps(text, states, [])
        assert (got - expected).abs().max() > 0.01 * expected.abs().max()
