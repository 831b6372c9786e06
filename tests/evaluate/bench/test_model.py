"""A whole target: every call that fits is timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench.model import ModelResult
from mxspec.formats.bundle import Bundle
from mxspec.runtime.models import weight_reads

Specbench = Callable[..., Result]


def test_a_model_is_timed_at_every_size_that_fits(
    tiny_bundles: dict[str, Path], specbench: Specbench, in_the_middle_half: Callable[..., bool]
) -> None:
    result = specbench("model", str(tiny_bundles["near"]), "--repetitions", "1", "--json")
    assert result.exit_code == 0, result.output
    got = json.loads(result.stdout)
    assert [(c["tokens"], c["cached"]) for c in got["calls"]] == [
        (tokens, cached) for cached in (8, 64) for tokens in (1, 2, 4, 8, 16)
    ]
    assert ModelResult.model_validate(got).bundle == tiny_bundles["near"].name
    assert got["weight_bytes"] < got["weights_file_bytes"]
    for call in got["calls"]:
        assert in_the_middle_half(call, ("seconds", "seconds_quartiles"), ("share_of_read", "share_quartiles"))


def test_the_table_says_what_was_cached(
    specbench: Specbench, tiny_bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = specbench("model", str(tiny_bundles["near"]), "--repetitions", "1")
    assert result.exit_code == 0, result.output
    heads = [line for line in result.stderr.splitlines() if line.startswith("┃")]
    assert [cell.strip() for cell in heads[0].split("┃")[1:-1]] == [
        "tokens a call",
        "ms",
        "tok/s",
        "GB/s",
        "of a read",
        "over one token",
    ]
    assert "16 after 64 cached" in result.stderr


def test_a_step_reads_only_the_decoders_matrices(t5_bundle: Path) -> None:
    """Of each of two layers q, k, v and o, q and o of the source, the gated pair and its output; and the head."""
    tiles = 400 // 16 * 2  # bytes of a row of 64 weights: two blocks of 25
    rows = 2 * (3 * 64 + 64 + 64 + 64 + 2 * 96) + 272
    wide = 2 * 64 * 75
    assert weight_reads.matrix_bytes(Bundle.open(t5_bundle).manifest.models["target"]) == rows * tiles + wide
