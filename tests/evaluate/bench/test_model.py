"""A whole target: every call that fits is timed, and two models alternate call by call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import Result

from mxspec.evaluate.bench import calls as model
from mxspec.evaluate.bench.model import ModelResult
from mxspec.formats.bundle import Bundle
from mxspec.formats.manifest import ModelName
from mxspec.runtime.models import weight_reads
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.shape import Logits

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


def test_the_models_alternate_call_by_call(monkeypatch: pytest.MonkeyPatch, tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    names: tuple[ModelName, ...] = ("target", "draft")
    sessions = [Session.of(bundle, name, 1) for name in names]
    benches = [model.CallBench(Reader(session)) for session in sessions]
    calls: list[tuple[str, int, int]] = []
    forward = Reader.forward

    def watched(reader: Reader, tokens: Sequence[int], rows: int) -> Logits:
        calls.append((names[sessions.index(reader.session)], len(tokens), reader.length))
        return forward(reader, tokens, rows)

    for bench in benches:
        bench.fill(20)
    monkeypatch.setattr(Reader, "forward", watched)
    assert model.seconds_alternating(benches, 1, 20).shape == (3, 2)
    assert calls == [("target", 1, 20), ("draft", 1, 20)] * 3
    monkeypatch.setattr(model, "CALL_SECONDS", 10.0)
    assert model.seconds_alternating(benches, 2, 20, most=4).shape == (4, 2)


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
