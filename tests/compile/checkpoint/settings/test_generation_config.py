"""Generation settings: what a bundle applies of them, and which it names because it does not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import GenerationConfig

from mxspec.compile.checkpoint.settings.generation_config import (
    BEAMS,
    HARMLESS,
    OPTIONS,
    RULES,
    not_applied_note,
    read_rules,
    read_sampling,
)
from mxspec.formats.errors import CheckpointError
from mxspec.formats.generation import NO_RULES, GenerationRules
from mxspec.formats.manifest import SamplingDefaults
from mxspec.formats.sampling import BUNDLED
from mxspec.runtime.commands.specrun import specrun


def read(folder: Path, **config: object) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(config))
    return read_sampling(folder)


def test_without_a_generation_config_it_is_greedy(tmp_path: Path) -> None:
    assert read_sampling(tmp_path) == SamplingDefaults()
    assert SamplingDefaults().temperature == 0


def test_stated_settings_are_kept(tmp_path: Path) -> None:
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


def rules(folder: Path, name: str = "generation_config.json", **config: object) -> GenerationRules:
    (folder / name).write_text(json.dumps(config))
    return read_rules(folder, 10, eos=(1,), longest=100)


def test_rules_about_tokens_are_read(tmp_path: Path) -> None:
    found = rules(
        tmp_path,
        suppress_tokens=[3, 10, -1],
        begin_suppress_tokens=[4],
        bad_words_ids=[[9], [1], [3], [2, 5], [2, 5], [2, 10]],
        forced_eos_token_id=1,
    )
    expected = GenerationRules(suppressed=(3,), suppressed_first=(4,), bad_words=((9,), (3,), (2, 5)), forced_last=(1,))
    assert found == expected
    assert rules(tmp_path, forced_eos_token_id=[1, 2]).forced_last == (1, 2)
    assert not_applied_note(found) is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"suppress_tokens": "x"}, "suppress_tokens: got 'x', expected a list"),
        ({"suppress_tokens": [True]}, "suppress_tokens: got True, expected a token id"),
        ({"bad_words_ids": [3]}, "bad_words_ids: got 3, expected a list of token ids"),
        ({"bad_words_ids": [[]]}, "bad_words_ids: got [], expected a list of token ids"),
        ({"forced_eos_token_id": 10}, "forced_eos_token_id: got 10, expected ids from 0 to 9"),
    ],
)
def test_rules_of_no_token_ids_are_errors_that_name_them(tmp_path: Path, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(says)):
        rules(tmp_path, **wrong)


def test_settings_without_effect_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(GenerationConfig(pad_token_id=0, use_cache=True).to_json_string())
    assert read_rules(tmp_path, 10) == NO_RULES
    off = {"num_beams": 1, "length_penalty": 2.0, "early_stopping": True, "diversity_penalty": 0.0, "top_k": 5}
    assert rules(tmp_path, max_length=100, guidance_scale=1, renormalize_logits=False, **off) == NO_RULES


def test_no_setting_of_transformers_is_dropped_in_silence(tmp_path: Path) -> None:
    """Each is applied, known to change no text, or named."""
    for key in vars(GenerationConfig()).keys() - RULES:
        found = rules(tmp_path, **{key: 7})
        taken = key in {*BUNDLED, *HARMLESS}
        assert taken or key in BEAMS or found.not_applied == {key: 7}, key


def test_settings_that_are_not_applied_are_named_with_their_option(tmp_path: Path) -> None:
    found = rules(
        tmp_path, num_beams=4, length_penalty=2.0, early_stopping=True, max_length=20, new_key=[1], bos_token_id=0
    )
    note = not_applied_note(found)
    assert note == (
        "warning: generation settings of the checkpoint that are not applied: num_beams 4, length_penalty 2.0, "
        "early_stopping true, max_length 20, new_key [1]; to have them, ask for --beams 4 --length-penalty 2.0 "
        "--early-stopping true --max-new-tokens N"
    )
    assert (not_applied_note(found, (2, 0)) or "").endswith("--max-new-tokens 18")
    options = {option for parameter in specrun.params for option in parameter.opts}
    assert {f"--{name.replace('_', '-')}" for name in OPTIONS.values()} <= options


def test_config_json_is_read_without_a_generation_config_as_in_transformers(tmp_path: Path) -> None:
    config = {"num_beams": 4, "forced_eos_token_id": 2, "hidden_size": 64, "forced_bos_token_id": 0}
    alone = rules(tmp_path, "config.json", **config)
    assert alone == GenerationRules(forced_last=(2,), not_applied={"num_beams": 4, "forced_bos_token_id": 0})
    assert "forced_bos_token_id" not in read_rules(tmp_path, 10, decoder_start=(2, 0)).not_applied
    assert rules(tmp_path, eos_token_id=1) == NO_RULES
