"""The packed tensors with the largest errors, and what may make the target more accurate."""

from __future__ import annotations

import math
import shlex

from mxspec.evaluate.result import Value
from mxspec.formats.manifest import ModelEntry
from mxspec.formats.weight_format import FP16_TILES, WEIGHT_FORMATS, packed_shape

SHOWN = 5  # tensors, by default, if the ratio is beyond --max-ratio
_NAMED = 2  # number of tensors that the advice names


class TensorError(Value):
    """A packed tensor: its relative root-mean-square error, and the bytes that fp16 would add.

    `sources` are the checkpoint's names, for --keep-fp16; `predicted_loss`, in nats a token, is known if formats were
    chosen by a budget: that of all experts of the layer for a matrix of experts.
    """

    name: str
    sources: tuple[str, ...]
    format: str
    error: float
    added_bytes: int
    predicted_loss: float | None = None


def rank_tensors(entry: ModelEntry, count: int) -> tuple[TensorError, ...]:
    """The `count` packed tensors with the largest errors."""
    experts = entry.experts
    losses = {} if entry.budget is None else {product.name: product.loss for product in entry.budget.products}
    packed = [tensor for tensor in entry.tensors if tensor.format in WEIGHT_FORMATS and tensor.format != FP16_TILES]
    known = [(tensor.error, tensor) for tensor in packed if tensor.error is not None]
    worst = sorted(known, key=lambda each: (-each[0], each[1].name))[:count]
    return tuple(
        TensorError(
            name=tensor.name,
            sources=tensor.sources,
            format=tensor.format,
            error=error,
            added_bytes=math.prod(packed_shape(FP16_TILES, *tensor.shape)) - tensor.bytes,
            predicted_loss=losses.get(tensor.name if experts is None else experts.product_of(tensor.name)),
        )
        for error, tensor in worst
    )


def advise(entry: ModelEntry, worst: tuple[TensorError, ...]) -> tuple[str, ...]:
    """Sentences on what may make the target more accurate, the cheapest first."""
    advice = []
    if entry.rounding is None or entry.rounding.method != "gptq":
        advice.append("the same bytes lose less when rounded with care: speccompile --rounding gptq --calibrate TEXT")
    if entry.format == "mxfp6_e3m2":
        advice.append("mxfp6_e2m3 takes the same bytes and is mostly nearer: speccompile --target-format mxfp6_e2m3")
    if entry.budget is None:
        advice.append("formats chosen for every matrix: speccompile --max-ratio RATIO --calibrate TEXT")
    if worst:
        sources = [source for tensor in worst[:_NAMED] for source in tensor.sources]
        kept = " ".join(f"--keep-fp16 {shlex.quote(source)}" for source in sources)
        added = sum(tensor.added_bytes for tensor in worst[:_NAMED])
        advice.append(f"the worst tensors in fp16 add {added / 1e6:.2f} MB: speccompile {kept}")
    return tuple(advice)
