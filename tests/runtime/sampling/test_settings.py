"""What a caller may say, and the one line that answers anything else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxspec.formats.errors import GenerationError
from mxspec.formats.sampling import BUNDLED, PARAMETERS
from mxspec.runtime.sampling.settings import Sampling


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("temperature", [-1, math.nan, math.inf, 1e39, 10**400, "1", True]),
        ("top_k", [-1, 1.5, math.nan, "5", False, 2**70]),
        ("top_p", [0, 1.1, math.nan, "0.9", -0.5]),
        ("min_p", [-0.1, 1.1, math.nan, "x"]),
        ("typical_p", [0, 1.5, math.nan, []]),
        ("repetition_penalty", [0, -1, math.inf, math.nan, 1e30, "1"]),
        ("no_repeat_ngram_size", [-1, 1.5, math.nan, "3", True]),
        ("presence_penalty", [math.inf, math.nan, 1e30, "x"]),
        ("frequency_penalty", [-math.inf, math.nan, None]),
        ("seed", [-1, 2**64, 0.5, "x", True]),
        ("logit_bias", [[], "5", None, {"5": 1}, {1.5: 1}, {-1: 1}, {True: 1}, {5: "x"}, {5: math.inf}, {5: math.nan}]),
    ],
)
def test_senseless_settings_are_errors_of_one_line_that_name_them(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(GenerationError, match=f"^{name}[^\n]*: got [^\n]*expected[^\n]*$"):
            Sampling(**{name: value})


def test_unset_parameters_have_the_default_of_their_declaration() -> None:
    left = dict.fromkeys(BUNDLED)
    assert Sampling(**left) == Sampling(**{name: PARAMETERS[name].default for name in BUNDLED}) == Sampling()


def test_numbers_of_any_kind_become_python_numbers() -> None:
    sampling = Sampling(np.float32(0.5), np.int32(4), 1, np.uint64(2**64 - 1), logit_bias={np.int64(7): -math.inf})
    assert repr(sampling.temperature) == "0.5"
    assert repr((sampling.top_k, sampling.top_p, sampling.seed)) == f"(4, 1.0, {2**64 - 1})"
    assert repr(dict(sampling.logit_bias)) == "{7: -inf}"
    assert replace(sampling, top_k=5).logit_bias == {7: -math.inf}
    assert hash(sampling) == hash(replace(sampling))


def test_a_bias_cannot_change_under_a_sequence() -> None:
    given = {1: 2.0}
    sampling = Sampling(logit_bias=given)
    given[1] = 3.0
    assert sampling.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        sampling.logit_bias[1] = 3.0  # type: ignore[index]


def test_settings_that_temperature_0_ignores_are_named() -> None:
    assert Sampling().unused == ()
    assert Sampling(0, 5, 0.9, 3, min_p=0.1, typical_p=0.5).unused == ("top_k", "top_p", "min_p", "typical_p")
    assert Sampling(1, 5, 0.9, 3, min_p=0.1, typical_p=0.5).unused == ()
    assert Sampling(repetition_penalty=2, logit_bias={1: 1}).unused == ()


def test_a_seed_is_drawn_where_none_was_given() -> None:
    drawn = {Sampling(1.0).seeded().seed for _ in range(20)}
    assert len(drawn) == 20
    assert all(seed is not None and 0 <= seed < 2**64 for seed in drawn)
    assert Sampling(1.0, seed=0).seeded().seed == 0
