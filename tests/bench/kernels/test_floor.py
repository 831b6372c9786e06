"""The smallest steps of a call: what is timed, and that each node computes."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from click.testing import Result

from bench.kernels import floor as measure
from bench.kernels.floor import FloorResult
from bench.kernels.nodes import attention, gate, norm
from bench.shapes.known import SHAPES


def test_each_step_is_timed(
    laboratory: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, in_the_middle_half: Callable[..., bool]
) -> None:
    monkeypatch.setattr(measure, "NODES", 2)
    monkeypatch.setattr(measure, "RUNS", 10)
    result = laboratory("floor", "--repetitions", "2", "--json")
    assert result.exit_code == 0, result.output
    found = FloorResult.model_validate(json.loads(result.stdout))
    assert [step.name.split(",")[0] for step in found.steps] == [
        *["a parallel region"] * 3,
        "a node that does nothing (a norm of 16 values)",
        "a norm of 576 values",
        "a gate of 1",
        "attention after 0 cached tokens",
        "attention after 128 cached tokens",
    ]
    for step in found.steps:
        assert in_the_middle_half(step.model_dump(), ("seconds", "seconds_quartiles"))
        assert len(step.trials_seconds) == 2


def test_a_region_follows_its_pause() -> None:
    region = measure.time_region(2e-3, 3)
    assert (region > 0).all()


def test_nodes_compute() -> None:
    node = norm(32)
    node.chain(3)()
    total = node.inputs["x"] + node.inputs["residual"]
    expected = total / np.sqrt(np.square(total).mean() + 1e-5) * node.inputs["weight"]
    np.testing.assert_allclose(node.outputs[0], expected, rtol=1e-5)
    node = gate(16)
    node.chain(1)()
    gates, ups = np.split(node.inputs["x"], 2, axis=-1)
    np.testing.assert_allclose(node.outputs[0], gates / (1 + np.exp(-gates)) * ups, rtol=1e-5)


def test_attention_writes_its_cache() -> None:
    node = attention(SHAPES["smollm2-135m"], 5)
    before = node.inputs["past_value"].copy()
    node.chain(2)()
    changed = np.flatnonzero((node.inputs["past_value"] != before).any(axis=(0, 1, 3)))
    assert changed.tolist() == [5]
