"""Calls with each kind of caches: what is compared, and the bytes that they take."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median

import pytest
from click.testing import Result

from bench.calls import caches as command
from bench.calls.caches import CachesResult
from bench.shapes.known import Shape

SMALL = Shape("small", 64, 96, layers=2, heads=2, kv_heads=1, vocab_size=512)


def test_kinds_are_timed_at_each_point(laboratory: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.SHAPES, "tinyllama-1.1b", SMALL)
    points = ("--cached", "40", "--cached", "90", "--tokens", "1", "--tokens", "3")
    result = laboratory("caches", *points, "--repetitions", "2", "--json")
    assert result.exit_code == 0, result.output
    found = CachesResult.model_validate(json.loads(result.stdout))
    wanted = [(kind, count, cached) for cached in (40, 90) for count in (1, 3) for kind in ("float16", "mxint8")]
    assert [(call.kind, call.tokens, call.cached) for call in found.calls] == wanted
    for first, other in zip(found.calls[::2], found.calls[1::2], strict=True):
        assert first.cache_bytes == 2 * 2 * 64 * first.cached  # keys and values, layers, a head of 32 in float16
        assert other.cache_bytes == 2 * 2 * 33 * first.cached
        assert first.over_first == 1
        ratios = [a / b for a, b in zip(first.trials_seconds, other.trials_seconds, strict=True)]
        assert other.over_first == pytest.approx(median(ratios))


def test_activations_that_a_format_does_not_take_are_one_line(laboratory: Callable[..., Result]) -> None:
    result = laboratory("caches", "--format", "mxfp6_e3m2", "--activations", "int8")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["error: --activations: got int8, but products of mxfp6_e3m2 take int16"]
