"""Write one model: its weights, and the graph whose initializers point into them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from mxspec.compile.planning.model import ModelPlan
from mxspec.compile.progress import Advance
from mxspec.compile.weights.pack import PackedWeights, pack_weights
from mxspec.compile.weights.rounding.store import TO_NEAREST, RoundedModel
from mxspec.formats.manifest import LENDER, EncoderEntry, ModelEntry, ModelName


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A model on disk: its manifest entry, the hash of its weights, and how many tensors a killed run had packed."""

    entry: ModelEntry
    weights_sha256: str
    taken_over: int = 0


def write_model(
    plan: ModelPlan,
    folder: Path,
    advance: Advance,
    rounded: RoundedModel = TO_NEAREST,
    journal: Path | None = None,
) -> WrittenModel:
    """Write `NAME.safetensors`, `NAME.onnx` and, with an encoder, `NAME_encoder.onnx` into a folder.

    `advance` gets the checkpoint bytes that are done. With a `journal`, a killed run is continued.
    """
    path = folder / weights_name(plan.name)
    packed = pack_weights(plan.stored, plan.sources, plan.layout, path, advance, rounded, journal)
    return write_graph(plan, folder, packed, rounded)


def weights_name(name: ModelName) -> str:
    """The weights file of a model."""
    return f"{name}.safetensors"


def write_graph(
    plan: ModelPlan, folder: Path, packed: PackedWeights, rounded: RoundedModel = TO_NEAREST
) -> WrittenModel:
    """Write the graphs over the weights that lie in the folder already."""
    graph, weights, exported = f"{plan.name}.onnx", weights_name(plan.name), plan.exported
    point_into(weights, plan)
    ir.save(exported.model, folder / graph)
    encoder = None
    if exported.encoder is not None:
        name = f"{plan.name}_encoder.onnx"
        ir.save(exported.encoder.model, folder / name)
        encoder = EncoderEntry(
            graph=name, layers=exported.encoder.layers, context_length=exported.encoder.context_length
        )
    entry = ModelEntry(
        graph=graph,
        weights=weights,
        architecture=exported.architecture,
        format=plan.weight_format,
        activations=plan.activations,
        layers=exported.layers,
        kv_heads=exported.kv_heads,
        head_size=exported.head_size,
        caches=exported.caches,
        windows=exported.windows,
        vocab_size=exported.vocab_size,
        context_length=exported.context_length,
        states=exported.states,
        experts=exported.experts,
        encoder=encoder,
        specializations=plan.specializations,
        tensors=packed.entries,
        borrowed=tuple(plan.borrowed),
        ignored=plan.ignored,
        rounding=rounded.entry,
        notes=exported.notes,
    )
    return WrittenModel(entry, packed.sha256, packed.taken_over)


def point_into(weights: str, plan: ModelPlan) -> None:
    """Have the graphs' initializers point into the weights file, or the lender's; each has a value afterwards."""
    offsets = plan.layout.offsets
    for graph in plan.exported.graphs:
        initializers = graph.graph.initializers
        for spec in plan.exported.weights:
            if spec.name not in initializers:  # another graph of the model reads it
                continue
            lent = plan.borrowed.get(spec.name)
            initializers[spec.name].const_value = ir.ExternalTensor(
                weights if lent is None else weights_name(LENDER),
                offsets[spec.name] if lent is None else lent,
                spec.stored_bytes,
                ir.DataType.from_numpy(spec.stored_dtype),
                shape=ir.Shape(spec.stored_shape),
                name=spec.name,
            )
        empty = [name for name, value in initializers.items() if value.const_value is None]
        assert not empty, f"initializers without a value: {empty}"
