"""Rules about tokens against transformers' generate: the same texts, at every K and by every search."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from mxspec.compile.checkpoint.settings.generation_config import read_rules
from mxspec.formats.errors import GenerationError
from mxspec.formats.generation import GenerationRules
from mxspec.runtime.events import Finished
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shaper import Shaper
from tests.runtime.beams.test_transformers import PROMPT, VOCAB, Table, theirs

LENGTH = 12


def random_config(rng: random.Random, beams: int) -> dict[str, Any]:
    """Generation settings of which each acts now and then; the prompt ends with the beginning of a bad word."""
    few = range(VOCAB)
    words = [[rng.choice(few) for _ in range(rng.choice([1, 2, 2, 3]))] for _ in range(60)]
    config = {
        "suppress_tokens": rng.sample(range(3, VOCAB), 3),
        "begin_suppress_tokens": rng.sample(few, 12),
        "bad_words_ids": [*words, [PROMPT[-1], 7]],
        "forced_eos_token_id": rng.choice([2, [2], [2, 9]]) if beams == 1 else 2,  # two of them would tie
    }
    return {key: value for key, value in config.items() if rng.random() < 0.7}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("beams", [1, 3])
def test_texts_are_those_of_transformers(toys: Any, tmp_path: Path, seed: int, beams: int) -> None:
    rng = random.Random(seed)
    table, config = toys.random_logits(VOCAB, seed, spread=1.5), random_config(rng, beams)
    eos = [2] if rng.random() < 0.5 else []
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    rules = read_rules(tmp_path, VOCAB, eos=eos)
    if beams > 1:
        expected = theirs(Table(table), PROMPT, beams, LENGTH, eos, use_cache=False, **config)
        target = toys.Session(table, slots=8)
        events = toys.search(target, None, PROMPT, count=beams, best=beams, eos=eos, max_new_tokens=LENGTH, rules=rules)
        for sample, (ids, score) in enumerate(expected):
            own = [event for event in events if event.sample == sample]
            assert toys.tokens(own) == ids
            assert own[-1].score == pytest.approx(score, rel=1e-4, abs=1e-5)
        return
    (found,) = Table(table).generate(
        torch.tensor([PROMPT]),
        do_sample=False,
        max_new_tokens=LENGTH,
        eos_token_id=eos or None,
        pad_token_id=0,
        use_cache=False,
        **config,
    )
    ids = found.tolist()[len(PROMPT) :]
    near = toys.mixed_logits(table, toys.random_logits(VOCAB, seed + 100), 0.3)
    for k in (0, 1, 4):
        target, draft = toys.Session(table), toys.Session(near)
        events = list(toys.generate(target, draft, PROMPT, k=k, max_new_tokens=LENGTH, eos=eos, rules=rules))
        assert toys.tokens(events) == ids
        assert isinstance(events[-1], Finished)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sampled_text_keeps_to_the_rules_too(toys: Any, temperature: float) -> None:
    rules = GenerationRules(suppressed=(3, 4), suppressed_first=(5,), bad_words=((6, 7), (8, 9, 8)), forced_last=(2,))
    table = toys.random_logits(VOCAB, 5, spread=0.3)
    near = toys.mixed_logits(table, toys.random_logits(VOCAB, 6), 0.3)
    for seed in range(20):
        events = toys.generate(
            toys.Session(table), toys.Session(near), PROMPT, k=3, max_new_tokens=LENGTH, temperature=temperature,
            seed=seed, rules=rules,
        )  # fmt: skip
        ids = toys.tokens(events)
        assert not {3, 4} & {*ids}
        assert ids[0] != 5
        assert ids[-1] == 2
        text = "".join(f"[{token}]" for token in [*PROMPT, *ids])
        assert "[6][7]" not in text
        assert "[8][9][8]" not in text


def test_rules_that_leave_no_token_are_an_error_by_name() -> None:
    shaper = Shaper(Sampling(), [], vocab_size=3, eos=[], rules=GenerationRules(suppressed=(0, 1, 2)))
    row = torch.zeros(3).numpy()
    with pytest.raises(GenerationError, match=r"^suppress_tokens: leaves no token at position 0"):
        shaper.greedy(row)
    assert not shaper.allows(1)
