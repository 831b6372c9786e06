"""A bundle's graphs with every dimension fixed, for compilers that need this; over the same weights file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from mxspec.compile.check.specialize import check_same_bits
from mxspec.compile.interchange.folder import EmittedFolder
from mxspec.compile.progress import Stages
from mxspec.formats.bundle import Bundle
from mxspec.formats.caches import capacity_name
from mxspec.formats.manifest import ModelEntry, ModelName
from mxspec.runtime.models.session import Session


@dataclass(frozen=True, slots=True)
class CallShape:
    """The dimensions of a graph of one shape, by their names in the graph contract."""

    tokens: int
    sequences: int
    rows: int
    slots: int
    capacity: int


def call_shapes(name: ModelName, entry: ModelEntry, k_max: int, slots: int) -> dict[str, CallShape]:
    """The calls of a runtime, by purpose.

    A chunk of one prompt, with logits of the last token only; then calls of all slots with one token each, with the K+1
    scored tokens each, and for the draft with the two tokens of a catch-up.
    """

    def of_all(length: int) -> CallShape:
        return CallShape(slots * length, slots, slots * length, slots, entry.context_length)

    chunk = max(entry.specializations)
    shapes = {"prefill": CallShape(chunk, 1, 1, slots, entry.context_length), "decode": of_all(1)}
    what, length = ("catch_up", 2) if name == "draft" else ("score", k_max + 1)
    return shapes | ({what: of_all(length)} if length in entry.specializations else {})


def emit_static(bundle: Bundle, output: Path, *, force: bool, stages: Stages, slots: int = 1) -> dict[str, Any]:
    """Write NAME.CALL.onnx for each call of each model into `output`, and the weights; return the index.

    Raises MxspecError, and leaves nothing behind when it fails.
    """
    with EmittedFolder(output, "static", force=force) as folder:
        models: dict[str, Any] = {}
        for name, entry in bundle.manifest.models.items():
            with stages.step(f"static {name}"):
                linked = place_weights(bundle.weights_path(name), folder)
                shapes = call_shapes(name, entry, bundle.manifest.k_max, slots)
                graphs = dict(write_graphs(bundle, name, shapes, folder.folder))
            with stages.step(f"check static {name}"):
                for what, graph in graphs.items():
                    check_graph(bundle, name, folder.folder, graph, shapes[what])
            calls = {what: {"graph": graph, **asdict(shapes[what])} for what, graph in graphs.items()}
            linking = {"weights": entry.weights, "weights_are_linked": linked}
            models[name] = linking | ring_capacities(entry) | {"graphs": calls}
        return folder.publish(bundle, models)


def ring_capacities(entry: ModelEntry) -> dict[str, int]:
    """The capacities of layers with a window, by the names that the graph has for them."""
    return {capacity_name(window): entry.capacity_of(window) for window in sorted(set(entry.windows) - {0})}


def place_weights(weights: Path, folder: EmittedFolder) -> bool:
    """Link the bundle's file into the folder, or copy it if the file system cannot; return whether it is a link.

    ONNX Runtime refuses weights outside a model's folder, and links that lead out of it.
    """
    try:
        os.link(weights, folder.folder / weights.name)
    except OSError:
        folder.require_space(weights.stat().st_size)
        shutil.copyfile(weights, folder.folder / weights.name)
        return False
    return True


def write_graphs(
    bundle: Bundle, name: ModelName, shapes: dict[str, CallShape], folder: Path
) -> Iterator[tuple[str, str]]:
    """Write a graph for each call; return file names by the purpose of the call."""
    for what, shape in shapes.items():
        graph = ir.load(bundle.graph_path(name))
        fix_dimensions(graph, asdict(shape) | ring_capacities(bundle.manifest.models[name]))
        ir.save(graph, folder / f"{name}.{what}.onnx")
        yield what, f"{name}.{what}.onnx"


def check_graph(bundle: Bundle, name: ModelName, folder: Path, graph: str, shape: CallShape) -> None:
    """Run a graph and the bundle's own. Raises CheckFailed if their bits differ."""
    own = bundle.manifest.models[name]
    fixed = own.model_copy(update={"graph": graph})
    sessions = (
        Session(folder, fixed, own.vocab_size, shape.slots),
        Session(bundle.path, own, own.vocab_size, shape.slots),
    )
    length, rows = shape.tokens // shape.sequences, shape.rows // shape.sequences
    check_same_bits(*sessions, sequences=shape.sequences, length=length, rows=rows)


def fix_dimensions(model: ir.Model, sizes: dict[str, int]) -> None:
    """Replace the names of dimensions by sizes, everywhere in the graph."""
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    for value in values:
        if value.shape is not None:
            value.shape = ir.Shape([_fixed(dimension, sizes) for dimension in value.shape])
    symbolic = [str(value.name) for value in model.graph.inputs if value.shape is None or value.shape.is_dynamic()]
    assert not symbolic, f"inputs without a fixed shape: {symbolic}"


def _fixed(dimension: int | ir.SymbolicDim, sizes: dict[str, int]) -> int | ir.SymbolicDim:
    return dimension if isinstance(dimension, int) else sizes.get(str(dimension.value), dimension)
