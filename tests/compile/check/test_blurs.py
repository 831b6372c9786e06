"""int8 rows and MXINT8 caches: right ones pass; damage is seen, in the graph as in the rounding alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from mxspec.compile.check.blurs import check_divergence, mean_divergence, without
from mxspec.compile.check.own_weights import check_own_weights
from mxspec.compile.check.readings import LENGTH, SLOTS, Reading, random_texts, read_texts, shortened
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.formats.errors import CheckFailed
from mxspec.formats.manifest import ModelEntry
from mxspec.runtime.models.session import Session
from tests.compile.outlined import written
from tests.conftest import DEMO

BLOCK = 32  # columns that have one scale
Damage = Callable[[ir.Graph, ir.Node], ir.Value]
"""Of a product's rows: what it reads in their place."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, each_model_compiled_once: None) -> tuple[Path, ModelEntry]:
    """The demo target with int8 rows and MXINT8 caches."""
    folder = tmp_path_factory.mktemp("int8")
    with Checkpoint(DEMO / "target") as checkpoint:
        return folder, written(checkpoint, folder, 1024, "mxint8", format="mxfp6_e2m3", activations="int8")


def constant(graph: ir.Graph, values: object) -> ir.Value:
    tensor = ir.tensor(values, name=f"damage.{len(graph.initializers)}")
    value = ir.Value(name=tensor.name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.initializers.add(value)
    return value


def compute(graph: ir.Graph, before: ir.Node, operator: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
    node = ir.node(operator, inputs, attributes)
    node.outputs[0].name = f"damage.of.{before.name}.{operator}.{len(graph)}"
    graph.insert_before(before, node)
    return node.outputs[0]


def scaled(factor: float) -> Damage:
    return lambda graph, product: compute(
        graph, product, "Mul", product.inputs[0], constant(graph, np.array([factor], np.float32))
    )


def exchanged(step: int) -> Damage:
    """The first two of every `step` columns."""

    def damage(graph: ir.Graph, product: ir.Node) -> ir.Value:
        columns = np.arange(product.attributes["K"].as_int())
        columns[::step], columns[1::step] = columns[1::step].copy(), columns[::step].copy()
        return compute(graph, product, "Gather", product.inputs[0], constant(graph, columns), axis=-1)

    return damage


def shifted(levels: float) -> Damage:
    """By so many of a block's 127 levels, as a wrong zero point does."""

    def damage(graph: ir.Graph, product: ir.Node) -> ir.Value:
        rows, k = product.inputs[0], product.attributes["K"].as_int()
        leading = [0] * (len(rows.shape or ()) - 1)  # as they are
        blocks = compute(graph, product, "Reshape", rows, constant(graph, np.array([*leading, k // BLOCK, BLOCK])))
        largest = compute(
            graph, product, "ReduceMax", compute(graph, product, "Abs", blocks), constant(graph, np.array([-1]))
        )
        offset = compute(graph, product, "Mul", largest, constant(graph, np.array([levels / 127], np.float32)))
        moved = compute(graph, product, "Add", blocks, offset)
        return compute(graph, product, "Reshape", moved, constant(graph, np.array([*leading, k])))

    return damage


def write_damaged(model: tuple[Path, ModelEntry], folder: Path, damage: Damage, which: slice) -> Path:
    """A copy of the model in which some products read damaged rows."""
    source, entry = model
    (folder / entry.weights).hardlink_to(source / entry.weights)
    loaded = ir.load(source / entry.graph)
    products = [node for node in loaded.graph if "activations" in node.attributes]
    assert len(products) > 8
    for product in products[which]:
        product.replace_input_with(0, damage(loaded.graph, product))
    ir.save(loaded, folder / entry.graph)
    return folder


def read(folder: Path, entry: ModelEntry) -> list[Reading]:
    session = Session(folder, shortened(entry, LENGTH), entry.vocab_size, SLOTS)
    return list(read_texts(session, random_texts(entry.vocab_size)))


ALL, ONE = slice(None), slice(5, 6)


def test_rounding_passes(model: tuple[Path, ModelEntry]) -> None:
    folder, entry = model
    with Checkpoint(DEMO / "target") as checkpoint:
        found = check_own_weights(folder, entry, checkpoint)
    assert found is not None
    assert found.stored.error < 2e-3
    assert set(found.divergences) == {"int8_rows", "mxint8_caches"}
    assert all(1e-6 < divergence < 1e-3 for divergence in found.divergences.values())


@pytest.mark.parametrize(
    ("damage", "which"),
    [
        (scaled(1.02), ALL),
        (scaled(1.02), ONE),
        (exchanged(256), ONE),
        (shifted(1), ALL),
        (shifted(4), ONE),
    ],
    ids=["all scaled", "one scaled", "columns of one", "all shifted", "one shifted"],
)
def test_a_wrong_graph_is_seen_with_rows_in_int16(
    damage: Damage, which: slice, model: tuple[Path, ModelEntry], tmp_path: Path
) -> None:
    wrong = write_damaged(model, tmp_path, damage, which)
    with Checkpoint(DEMO / "target") as checkpoint, pytest.raises(CheckFailed, match="differs from transformers"):
        check_own_weights(wrong, model[1], checkpoint)


@pytest.mark.parametrize(
    ("damage", "which"),
    [
        (scaled(1.1), ALL),
        (scaled(1.5), ONE),
        (exchanged(256), ALL),
        (exchanged(4), ONE),
        (shifted(4), ALL),
        (shifted(128), ONE),
    ],
    ids=["all scaled", "one scaled", "columns of all", "columns of one", "all shifted", "one shifted"],
)
def test_wrong_int8_products_are_seen(
    damage: Damage, which: slice, model: tuple[Path, ModelEntry], tmp_path: Path
) -> None:
    """The graph is right: only its int8 products are not."""
    folder, entry = model
    with without(folder, entry, ["int8_rows"]) as place:
        exact = read(*place)
    check_divergence("int8_rows", mean_divergence(exact, read(folder, entry)), entry)
    divergence = mean_divergence(exact, read(write_damaged(model, tmp_path, damage, which), entry))
    with pytest.raises(CheckFailed, match=r"target\.onnx: int8 rows change its distributions by a KL divergence of"):
        check_divergence("int8_rows", divergence, entry)


def test_values_that_are_not_finite_are_refused(model: tuple[Path, ModelEntry]) -> None:
    exact = read(*model)
    broken = [Reading(one.way, one.text, one.first, one.logits * np.nan) for one in exact]
    with pytest.raises(CheckFailed, match="of inf nats"):
        check_divergence("int8_rows", mean_divergence(exact, broken), model[1])
