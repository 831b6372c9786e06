"""Beam search against transformers': the same texts, scores to rounding, on models that both look up."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel, T5ForConditionalGeneration
from transformers.modeling_outputs import CausalLMOutput

from mxspec.compile.check import own_weights
from mxspec.compile.check.reference import load_reference
from mxspec.compile.checkpoint.open_checkpoint import open_checkpoint
from mxspec.formats.bundle import Bundle
from mxspec.recipes.recipe import Recipe
from mxspec.runtime.engine import Engine
from mxspec.runtime.events import Finished
from tests.conftest import DEMO

VOCAB = 24
PROMPT = [3, 1, 4, 1, 5]


class Table(PreTrainedModel, GenerationMixin):
    """A model of transformers' whose logits are a function of the text."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, logits: Callable[[tuple[int, ...]], Any]) -> None:
        super().__init__(PretrainedConfig(vocab_size=VOCAB, is_decoder=True))
        self.anything = torch.nn.Parameter(torch.zeros(1))
        self.function = logits

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        rows = [self.function(tuple(text)) for text in input_ids.tolist()]
        return CausalLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None])


def theirs(
    model: PreTrainedModel, prompt: list[int], beams: int, length: int, eos: list[int], begin: int = 0, **settings: Any
) -> Any:
    """Token ids and score of each of the best texts; `begin` are tokens before them, by default the prompt's."""
    found = model.generate(
        torch.tensor([prompt]),
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=length,
        do_sample=False,
        eos_token_id=eos or None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_scores=True,
        **settings,
    )
    return [
        (_until(ids[begin or len(prompt) :], eos, length), score)
        for ids, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True)
    ]


def _until(ids: list[int], eos: list[int], length: int) -> list[int]:
    """What stands after the first end is padding."""
    end = next((place + 1 for place, token in enumerate(ids) if token in eos), length)
    return ids[:end]


def random_settings(rng: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "length_penalty": rng.choice([1.0, 0.0, 2.0, -1.0, 0.6]),
        "early_stopping": rng.choice([False, True, "never"]),
    }
    if rng.random() < 0.3:
        settings["no_repeat_ngram_size"] = rng.choice([2, 3])
    if rng.random() < 0.3:
        settings["repetition_penalty"] = rng.choice([1.2, 0.8])
    if rng.random() < 0.3:
        settings["min_new_tokens"] = rng.randrange(1, 8)
    return settings


@pytest.mark.parametrize("seed", range(40))
def test_toy_models_give_transformers_texts_and_scores(toys: Any, seed: int) -> None:
    rng = random.Random(seed)
    table = toys.random_logits(VOCAB, seed, spread=rng.choice([0.5, 1.5, 3.0]))
    eos = rng.sample(range(VOCAB), rng.randrange(4))
    ends_often = {token: rng.choice([0.0, 2.0]) for token in eos}

    def logits(text: tuple[int, ...]) -> Any:
        row = table(text).copy()
        for token, more in ends_often.items():
            row[token] += more
        return row

    beams, length, settings = rng.randrange(2, 6), rng.choice([1, 5, 12, 20]), random_settings(rng)
    settings["min_new_tokens"] = min(settings.get("min_new_tokens", 0), length)
    expected = theirs(Table(logits), PROMPT, beams, length, eos, use_cache=False, **settings)
    target = toys.Session(logits, slots=rng.choice([beams, 8]))
    events = toys.search(target, None, PROMPT, count=beams, best=beams, eos=eos, max_new_tokens=length, **settings)
    for sample, (ids, score) in enumerate(expected):
        own = [event for event in events if event.sample == sample]
        assert toys.tokens(own) == ids
        assert isinstance(own[-1], Finished)
        assert own[-1].score == pytest.approx(score, rel=1e-4, abs=1e-5)
        assert own[-1].reason == ("eos" if ids[-1] in eos else "max_new_tokens")


@pytest.fixture(scope="module")
def demo_reference(demo_bundles: dict[str, Path]) -> PreTrainedModel:
    """transformers' model with the packed weights of the demo's target."""
    entry = Bundle.open(demo_bundles["real"]).manifest.models["target"]
    recipe = Recipe.load(DEMO.with_suffix(".toml"))
    with ExitStack() as files, torch.no_grad():
        checkpoint, _ = open_checkpoint(recipe, recipe.target, files)
        model = load_reference(checkpoint, checkpoint.config)
        own_weights._store_weights(model, demo_bundles["real"], entry, checkpoint, None)
    return model


SETTINGS: list[dict[str, Any]] = [
    {},
    {"length_penalty": 2.0, "early_stopping": True, "repetition_penalty": 1.3},
    {"length_penalty": -1.0, "early_stopping": "never", "no_repeat_ngram_size": 3, "min_new_tokens": 4},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_bundle_gives_transformers_texts_and_scores(
    demo_bundles: dict[str, Path], demo_reference: PreTrainedModel, settings: dict[str, Any]
) -> None:
    with Engine(demo_bundles["real"], slots=6) as engine:
        eos = list(engine.bundle.manifest.tokenizer.eos_token_ids)
        for prompt, beams in (("def mean(values):\n", 4), ("import os\n\nclass Reader:\n    def", 2)):
            ids = engine.encode(prompt)
            expected = theirs(demo_reference, ids, beams, 20, eos, **settings)
            for k in (0, 2):
                answers = engine.generate(ids, beams=beams, n=beams, max_new_tokens=20, k=k, **settings).results()
                assert [answer.token_ids for answer in answers] == [ids for ids, _ in expected]
                scores = [score for _, score in expected]
                np.testing.assert_allclose([answer.score for answer in answers], scores, rtol=1e-3)


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_pair_with_encoders_gives_transformers_texts_and_scores(t5_bundle: Path, settings: dict[str, Any]) -> None:
    model = T5ForConditionalGeneration.from_pretrained(t5_bundle.parent / "target", dtype=torch.float32).eval()
    kept = 0
    with Engine(t5_bundle, model="baseline") as engine:
        eos = list(engine.bundle.manifest.tokenizer.eos_token_ids)
        for source, beams in (("hello there", 4), ("a source that is longer than a chunk of sixteen", 3)):
            ids = engine.encode(source)
            expected = theirs(model, ids, beams, 20, eos, begin=1, **settings)
            for k in (0, 3):
                answers = engine.generate(source, beams=beams, n=beams, max_new_tokens=20, k=k, **settings).results()
                assert [answer.token_ids for answer in answers] == [ids for ids, _ in expected]
                scores = [score for _, score in expected]
                np.testing.assert_allclose([answer.score for answer in answers], scores, rtol=2e-3)
                kept += answers[0].statistics.accepted
    assert kept > 0
