"""Heads of both published forms, and with every flag: their logits are those of the formulas, step by step.

A wrong state or id changes no text and fails nowhere else: it only lowers acceptance.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.fit_head import fit_head, target_ids
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.weights.write_model import write_model
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.drafters.draft import StatesDraft, Unread
from mxspec.runtime.models.session import Session
from mxspec.runtime.models.slots import Slot
from tests.compile.heads.make_head import ROWS, TARGET_LOGITS, save_head
from tests.compile.heads.plain_head import PlainHead
from tests.conftest import save_checkpoint

LAYERS = 8
TOLERANCE = 1e-5  # of the largest logit
CASES: dict[str, dict[str, Any]] = {
    "nested ids": {"form": "nested", "ids": [-1, 3, 6]},
    "ids beside": {"form": "plain", "ids": [1, 4, 7], "own_embedding": True},
    "default ids": {"form": "plain", "bias": True},
    "another width": {"form": "plain", "width": 32, "target_width": 64, "own_embedding": True},
    "all tokens": {"form": "plain", "rows": TARGET_LOGITS},
    "speculators": {"form": "speculators", "norm_before_residual": True},
    "norm before fc": {"form": "speculators", "ids": [0, 7], "states": 2, "norm_before_fc": True},
    "fc norm": {"form": "speculators", "fc_norm": True, "norm_output": True, "norm_before_residual": True},
    "qwen3": {"form": "speculators", "layer_type": "qwen3", "norm_output": True},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("pair") / "target", seed=5, logits=TARGET_LOGITS, layers=LAYERS)


def compiled(head: Checkpoint, folder: Path) -> Session:
    folder.mkdir()
    recipe = Recipe.of_checkpoints("x", "y").with_changes(caches="float32")
    assert recipe.draft is not None
    ids = target_ids(head)
    rows = np.argsort(ids)
    plan = plan_model(Model("draft", head, recipe.draft, recipe, 96, rows=rows))
    entry = write_model(plan, folder, lambda count: None).entry
    return Session(folder, entry, len(rows), slots=3)


def close(got: Any, expected: torch.Tensor) -> bool:
    return float(np.abs(got - expected.numpy()).max()) < TOLERANCE * float(expected.abs().max())


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_formulas(target: Path, tmp_path: Path, case: str) -> None:
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    folder = save_head(tmp_path / "head", **CASES[case])
    plain = PlainHead.read(folder, model.model.embed_tokens.weight.detach())
    with Checkpoint(target) as of_target, Checkpoint(folder) as head:
        fit_head(head, of_target)
        session = compiled(head, tmp_path / "bundle")
        assert target_ids(head).tolist() == plain.token_of_row().tolist()
    entered = plain.layers_entered(LAYERS)
    assert session.entry.states is not None
    assert list(session.entry.states.layers) == entered
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 256, 40).tolist() for _ in range(2)]
    states = []
    for text in texts:
        with torch.no_grad():
            hidden = model(torch.tensor([text]), output_hidden_states=True).hidden_states
        states.append(torch.cat([hidden[layer][0] for layer in entered], dim=-1))
    given = SimpleNamespace(of=lambda slot, first, count: states[slot - 1][first : first + count].numpy())
    draft = StatesDraft(session, SimpleNamespace(given_states=given))  # type: ignore[arg-type]
    slots = [Slot(1), Slot(2)]

    def unread(lengths: list[int], guesses: list[list[int]] | None = None) -> list[Unread]:
        parts = zip(slots, texts, lengths, guesses or [[], []], strict=True)
        return [(slot, text[slot.draft_length : end] + guessed, 1) for slot, text, end, guessed in parts]

    slots[0].target_length, slots[1].target_length = 20, 6
    draft.run([(slots[0], texts[0][:11], 0), (slots[1], texts[1][:1], 0)])  # pieces of the prompts
    guessed = rng.integers(0, 256, (2, 3)).tolist()
    for lengths, forced in (([21, 7], 0), ([23, 8], 0), ([24, 12], 2)):  # rounds, the last after tokens not scored yet
        for slot, length in zip(slots, lengths, strict=True):
            slot.target_length = length - 1
        expected = [
            plain.steps(text[:end], state, guess)
            for text, state, end, guess in zip(texts, states, lengths, guessed, strict=True)
        ]
        rows = draft.run(unread(lengths, [guess[:forced] for guess in guessed]))
        for step in range(forced, 4):
            for row, steps in zip(rows, expected, strict=True):
                assert close(row, steps[step]), (case, lengths, step)
            if step < 3:
                rows = draft.run(
                    [(slot, guess[step : step + 1], 1) for slot, guess in zip(slots, guessed, strict=True)]
                )
        draft.settle(slots)
        assert [slot.draft_length for slot in slots] == lengths  # entries with own states are read again


def test_another_layer_is_seen_in_the_logits(target: Path, tmp_path: Path) -> None:
    """The comparison itself: ids that are off by one, or a state too early, are far beyond its tolerance."""
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    plain = PlainHead.read(save_head(tmp_path / "head"), model.model.embed_tokens.weight.detach())
    text = list(range(30))
    with torch.no_grad():
        hidden = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    right, wrong = (torch.cat([hidden[layer][0] for layer in ids], dim=-1) for ids in ((2, 4, 5), (1, 3, 4)))
    (expected,) = plain.steps(text, right, [])
    assert len(expected) == ROWS
    for states in (wrong, right.roll(1, 0), right.roll(-1, 0)):
        (got,) = plain.steps(text, states, [])
        assert not close(got.numpy(), expected)
        assert (got - expected).abs().max() > 0.01 * expected.abs().max()
