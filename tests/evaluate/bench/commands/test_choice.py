"""What to measure: a bundle, or one of random weights, which is kept until it is removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mxspec.evaluate import speccheck
from mxspec.evaluate.bench.shapes.known import ALL_SHAPES, Shape

Specbench = Callable[..., Result]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--shape", "tinyllama-1.1b", "--format", "mxfp6_e3m2", "--activations", "int8"), "take int16"),
        (("some.bundle", "--format", "mxint8"), "a bundle has its own"),
        ((), "expected either BUNDLE or --shape"),
    ],
)
def test_exactly_one_model_must_be_named(arguments: tuple[str, ...], said: str, specbench: Specbench) -> None:
    result = specbench("model", *arguments)
    assert result.exit_code == 1
    assert said in result.output


def test_a_bundle_of_random_weights_is_announced_listed_and_removed(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(
        ALL_SHAPES, "tinyllama-1.1b", Shape("tinyllama-1.1b", 64, 96, layers=1, heads=4, kv_heads=2, vocab_size=272)
    )
    work = tmp_path / "work"
    measured = ("model", "--shape", "tinyllama-1.1b", "--work", str(work), "--repetitions", "1", "--json")
    (first, second) = specbench(*measured), specbench(*measured)
    made = work / "tinyllama-1.1b-mxfp6_e3m2.bundle"
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    assert f"made {made} (" in first.stderr
    assert "made" not in second.stderr
    (work / "notes.bundle").mkdir()
    (work / "notes.bundle" / "manifest.json").write_text("{}")

    (listed,) = json.loads(specbench("shapes", "--work", str(work), "--json").stdout)["bundles"]
    assert listed == {"path": str(made), "bytes": sum(file.stat().st_size for file in made.iterdir())}
    assert specbench("shapes", "--work", str(work), "--remove").exit_code == 0
    assert [path.name for path in work.iterdir()] == ["notes.bundle"]
    nothing = specbench("shapes", "--work", str(work))
    assert (nothing.exit_code, nothing.stderr.split()[:2]) == (0, ["no", "bundles"])


def test_bare_commands_show_their_help(specbench: Specbench) -> None:
    for result in (specbench(), CliRunner().invoke(speccheck.main, [])):
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("Usage: ")
        assert "Commands:" in result.stdout
