"""A bundle of random weights, made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from bench.shapes.known import ALL_SHAPES, Shape

Laboratory = Callable[..., Result]


def test_activations_that_a_format_does_not_take_are_refused(laboratory: Laboratory) -> None:
    result = laboratory("shape", "tinyllama-1.1b", "--format", "mxfp6_e3m2", "--activations", "int8")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "take int16" in result.stderr


def test_a_bundle_of_random_weights_is_made_once(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(
        ALL_SHAPES, "tinyllama-1.1b", Shape("tinyllama-1.1b", 64, 96, layers=1, heads=4, kv_heads=2, vocab_size=272)
    )
    made = tmp_path / "work" / "tinyllama-1.1b-mxfp6_e3m2.bundle"
    said = [laboratory("shape", "tinyllama-1.1b", "--work", str(made.parent)) for _ in range(2)]
    assert [(one.exit_code, one.stdout) for one in said] == [(0, f"{made}\n")] * 2
    (manifest, *_) = sorted(made.glob("manifest.json"))
    written = manifest.stat().st_mtime_ns
    laboratory("shape", "tinyllama-1.1b", "--work", str(made.parent))
    assert manifest.stat().st_mtime_ns == written


def test_every_module_says_in_a_line_what_it_measures(laboratory: Laboratory) -> None:
    listed = laboratory("--help")
    assert listed.exit_code == 0
    assert "  codec " in listed.stdout
    assert "  tables " in listed.stdout
