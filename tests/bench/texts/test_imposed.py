"""Guesses that are right as often as is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from bench.shapes import random_bundle
from bench.shapes.known import SourceShape, source_draft_shape

Laboratory = Callable[..., Result]


def imposed(laboratory: Laboratory, *arguments: object) -> list[dict[str, Any]]:
    result = laboratory("imposed", *map(str, arguments), "--repetitions", "1", "--json")
    assert result.exit_code == 0, result.output
    points: list[dict[str, Any]] = json.loads(result.stdout)["points"]
    return points


def test_an_imposed_acceptance_is_reached(tiny_bundles: dict[str, Path], laboratory: Laboratory) -> None:
    options = ("--prompts", 4, "--new-tokens", 24, "--k", 1, "--k", 8, "--batch", 1, "--batch", 2)
    for acceptance in (0.0, 1.0):
        found = imposed(laboratory, tiny_bundles["random"], *options, "--acceptance", acceptance)
        assert [point["acceptance"] for point in found] == [acceptance] * 4


def test_a_shape_with_an_encoder_is_measured(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = SourceShape("t5-1.1-xl", 64, 96, layers=1, heads=2, vocab_size=272, context_length=64, source_length=40)
    monkeypatch.setattr(
        random_bundle, "source_draft_shape", lambda target: replace(source_draft_shape(target), layers=1)
    )
    bundle = random_bundle.random_bundle(small, tmp_path)
    options = ("--prompts", 2, "--context", 36, "--new-tokens", 40, "--k", 2, "--acceptance", 0.75)
    (point,) = imposed(laboratory, bundle, *options)
    assert point["acceptance"] == pytest.approx(0.75, abs=0.2)


def test_prompts_are_sources_for_models_with_encoders(t5_bundle: Path, tmp_path: Path, laboratory: Laboratory) -> None:
    """Lines of a text, or random ones."""
    text = tmp_path / "in.txt"
    text.write_text("hello there\nx\n\nabc def\nthe quick brown fox\njumps\n")
    options = ("--prompts", 4, "--new-tokens", 60, "--k", 2, "--k", "auto", "--acceptance", 0.75)
    for prompts in ((), ("--text", text)):
        fixed, _ = imposed(laboratory, t5_bundle, *options, *prompts)
        assert fixed["acceptance"] == pytest.approx(0.75, abs=0.15)
