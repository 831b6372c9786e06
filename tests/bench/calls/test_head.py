"""Steps with a whole head and with trimmed ones: how they alternate, and what each reads."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from bench.calls import head as measure
from bench.calls.head import HeadResult
from bench.shapes.known import Shape

SMALL = Shape("small", 64, 96, layers=1, heads=4, kv_heads=2, vocab_size=512, context_length=512)
ROW_BYTES = 2 * SMALL.hidden_size


def test_a_trimmed_head_reads_its_rows(
    laboratory: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, in_the_middle_half: Callable[..., bool]
) -> None:
    monkeypatch.setitem(measure.SHAPES, "qwen2.5-0.5b", SMALL)
    order: list[int] = []
    seconds = measure.Draft.seconds
    monkeypatch.setattr(
        measure.Draft, "seconds", lambda draft: (order.append(draft.entry.vocab_size), seconds(draft))[1]
    )
    result = laboratory("head", "--rows", "64", "--rows", "128", "--repetitions", "2", "--json")
    assert result.exit_code == 0, result.output
    found = HeadResult.model_validate(json.loads(result.stdout))
    assert [head.rows for head in found.heads] == [512, 128, 64]
    assert order == [64, 128, 512, 512, 128, 64, 64, 128, 512]  # a repetition that is not counted, and two
    whole, *trimmed = found.heads
    assert whole.over_whole == 1
    for head in found.heads:
        assert head.head_bytes == head.rows * ROW_BYTES
        assert in_the_middle_half(head.model_dump(), ("seconds", "seconds_quartiles"))
        assert len(head.trials_seconds) == 2
    for head in trimmed:
        assert whole.read_bytes - head.read_bytes == whole.head_bytes - head.head_bytes


def test_more_rows_than_tokens(laboratory: Callable[..., Result]) -> None:
    result = laboratory("head", "--rows", "200000")
    assert result.exit_code == 1
    assert "error: --rows: got 200000, expected at most 151936, the tokens of qwen2.5-0.5b" in result.stderr
