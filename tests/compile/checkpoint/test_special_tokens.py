"""Sampling defaults: what generation_config.json says, and greedy where it does not say to sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mxspec.compile.checkpoint.special_tokens import read_sampling
from mxspec.formats.errors import CheckpointError
from mxspec.formats.manifest import SamplingDefaults


def read(folder: Path, **config: object) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return read_sampling(folder)


def test_without_a_generation_config_it_is_greedy(tmp_path: Path) -> None:
    assert read_sampling(tmp_path) == SamplingDefaults()
    assert SamplingDefaults().temperature == 0


def test_what_is_stated_is_kept(tmp_path: Path) -> None:
    shaping = {"top_k": 20, "top_p": 0.8, "min_p": 0.05, "typical_p": 0.9}
    stated = {**shaping, "repetition_penalty": 1.05, "no_repeat_ngram_size": 3}
    assert read(tmp_path, do_sample=True, temperature=0.7, **stated) == SamplingDefaults(temperature=0.7, **stated)
    greedy = SamplingDefaults(temperature=0, **stated)
    assert read(tmp_path, do_sample=False, temperature=0.7, **stated) == greedy
    assert read(tmp_path, temperature=0.7, **stated) == greedy


def test_sampling_without_a_temperature_is_at_one_and_nulls_are_not_stated(tmp_path: Path) -> None:
    assert read(tmp_path, do_sample=True, top_k=None, top_p=None) == SamplingDefaults(temperature=1)
    assert read(tmp_path, do_sample=True, temperature=1, eos_token_id=7) == SamplingDefaults(temperature=1)


@pytest.mark.parametrize(
    "wrong", [{"temperature": -1}, {"top_p": 0.0}, {"top_k": "50"}, {"repetition_penalty": True}, {"min_p": 2}]
)
def test_values_that_nothing_can_be_sampled_with(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {next(iter(wrong))}: "):
        read(tmp_path, do_sample=True, **wrong)
