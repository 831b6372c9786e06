"""Hidden states as a graph's output: transformers' own, and without a change of any other bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from mxspec.compile.check import referee
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.planning import export_graph
from mxspec.compile.planning.model import Model
from mxspec.compile.planning.plan import plan_model
from mxspec.compile.trace.decoder import HiddenStates
from mxspec.compile.trace.trace import trace
from mxspec.compile.weights.write_model import write_model
from mxspec.formats.errors import BundleError, CheckFailed
from mxspec.formats.manifest import StatesEntry
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.models.part import Part
from mxspec.runtime.models.session import Session

# What is different where states branch off: norms, residuals in parallel, embeddings that are scaled or have positions.
NAMES = ("llama", "gpt2", "gemma2", "falcon", "cohere", "granite_swa")
TEXT = [int(token) for token in np.random.default_rng(3).integers(3, 118, 40)]


def compiled(checkpoint: Checkpoint, folder: Path, places: tuple[int, ...]) -> Session:
    folder.mkdir()
    recipe = Recipe.of_checkpoints("x").with_changes(caches="float32", target={"format": "fp16"})
    plan = plan_model(Model("target", checkpoint, recipe.target, recipe, 64, hidden_state_outputs=tuple(places)))
    entry = write_model(plan, folder, lambda count: None).entry
    return Session(folder, entry, entry.vocab_size, slots=4)


def read(session: Session) -> list[bytes]:
    """Logits and caches of two texts in pieces, together, rolled back, and copied to another slot."""
    calls = [
        [Part(2, 0, TEXT[:7], 0), Part(0, 0, TEXT[:20], 20)],
        [Part(0, 20, TEXT[20:21], 1), Part(2, 7, TEXT[5:9], 4)],
        [Part(0, 21, [9, 9, 9], 3)],
        [Part(2, 11, TEXT[9:10], 1), Part(0, 21, TEXT[21:30], 9)],
    ]
    bits = [session.run(parts).tobytes() for parts in calls]
    session.copy_prefix(0, 3, 30)
    bits.append(session.run([Part(3, 30, TEXT[30:], 10)]).tobytes())
    return bits + [cache[:, :, :30].tobytes() for cache in session.caches.values()]


@pytest.mark.parametrize("name", NAMES)
def test_states_are_transformers_own_and_change_no_bit(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path, name: str
) -> None:
    folder, model = tiny_checkpoint(name)
    layers = tuple(range(model.config.num_hidden_layers))
    with Checkpoint(folder) as checkpoint:
        plain, tapped = compiled(checkpoint, tmp_path / "plain", ()), compiled(checkpoint, tmp_path / "tapped", layers)
    assert plain.given_states is None
    assert plain.entry.states is None
    assert tapped.entry.states == StatesEntry(layers=layers, width=model.config.hidden_size)
    assert read(tapped) == read(plain)
    with torch.no_grad():
        hidden = model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states[:-1]
    expected = torch.cat(hidden, dim=-1)[0].numpy()
    assert tapped.given_states is not None
    got = tapped.given_states.of(3, 0, len(TEXT)).copy()
    assert np.abs(got - expected).max() < 1e-5 * np.abs(expected).max()
    tapped.run([Part(1, 0, TEXT, 1)])
    assert tapped.given_states.of(1, 0, len(TEXT)).tobytes() == got.tobytes()  # however the text was cut
    tapped.release(1)


def test_a_manifest_that_knows_other_states_than_the_graph_is_refused(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]], tmp_path: Path
) -> None:
    with Checkpoint(tiny_checkpoint("llama")[0]) as checkpoint:
        entry = compiled(checkpoint, tmp_path / "x", (1,)).entry
    assert entry.states is not None
    for states, said in (
        (None, "the graph has an unknown output 'states'"),
        (entry.states.model_copy(update={"layers": (0, 1)}), "expected rows of 128 float32 values"),
        (entry.states.model_copy(update={"own": 64}), "the graph has no input 'own_states'"),
    ):
        with pytest.raises(BundleError, match=said):
            Session(tmp_path / "x", entry.model_copy(update={"states": states}), entry.vocab_size, 1)


def test_the_referee_compares_states(
    tiny_checkpoint: Callable[[str], tuple[Path, PreTrainedModel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_checkpoint("llama")[1].config
    monkeypatch.setattr(export_graph, "trace", trace)  # not one of the run, which is right
    assert referee.judge(config, 64, [0]).entry.loud < 1e-5

    take = HiddenStates._take
    monkeypatch.setattr(HiddenStates, "_take", lambda states, layer, *given: take(states, (layer + 1) % 2, *given))
    with pytest.raises(CheckFailed, match="hidden states"):
        referee.judge(config, 64, [0])
