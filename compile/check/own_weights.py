"""A compiled model against transformers' float32 forward of the checkpoint that it was made from.

What a bundle stores is unpacked and put into transformers' model, so that packed and fp16 models alike are compared
exactly: what is left is half-precision caches and rounded activations. Each stored tensor must also be near the
parameter that transformers loaded there. That sees what a twin cannot: a tensor taken for another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from mxspec.compile.check.readings import LENGTH, SLOTS, Text, random_texts, read_texts
from mxspec.compile.check.reference import (
    Difference,
    largest_difference,
    load_reference,
    oracle,
    reads_alike_anywhere,
)
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.merged_tensor import MergedTensor
from mxspec.compile.checkpoint.mx_tensor import MxTensor
from mxspec.compile.checkpoint.names import resolve_names, tied_names
from mxspec.formats.errors import CheckFailed, CheckpointError, UnsupportedModelError
from mxspec.formats.manifest import ModelEntry, TensorEntry
from mxspec.formats.safetensors_file import DTYPE_BYTES
from mxspec.formats.storage import stored_as
from mxspec.formats.tiles import unpack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS
from mxspec.runtime.session import Session

MOST_BYTES = 3 << 28  # of float32 weights in a compile: with more it would not stay within 2 GB
TOLERANCE = {"int16": 1e-2, "int8": 1e-1}  # by activations: caches of trained models are rounded to half precision
NEAR = 0.5  # relative error of a stored tensor; the coarsest format takes 0.15, another tensor is 1.4 away

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """Differences of a model's logits from transformers': with the stored weights, and with the checkpoint's own."""

    stored: Difference
    checkpoint: Difference
    tolerance: float

    def check(self, graph: str) -> None:
        """Raise CheckFailed unless the logits are those of the stored weights."""
        if self.stored.error > self.tolerance:
            raise CheckFailed(
                f"{graph}: differs from transformers with the same weights by {self.stored.error:.1e} of the largest "
                f"logit ({self.stored.way}), expected at most {self.tolerance:.0e}: the bundle is wrong"
            )


def own_error(folder: Path, entry: ModelEntry, checkpoint: Checkpoint) -> float | None:
    """The error of a model's logits with its stored weights, or None where it is too large, or MX from the first.

    Raises CheckFailed where it is too large, or a tensor is not what transformers loads.
    """
    needed = sum(math.prod(tensor.shape) * 4 for tensor in checkpoint.tensors.values())
    if holds_codes(checkpoint) or needed > min(MOST_BYTES, available_memory() // 3):
        return None
    length = min(LENGTH, entry.context_length)
    found = compare_own_weights(folder, entry, checkpoint, random_texts(entry.vocab_size, length))
    found.check(entry.graph)
    return found.stored.error


def holds_codes(checkpoint: Checkpoint) -> bool:
    """Whether matrices of a checkpoint are MX already, which transformers does not load by itself."""
    return any(isinstance(tensor, MxTensor) for tensor in checkpoint.tensors.values())


def available_memory() -> int:
    """Bytes that the system says can be had without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def compare_own_weights(folder: Path, entry: ModelEntry, checkpoint: Checkpoint, texts: Sequence[Text]) -> OwnWeights:
    """Read four texts with a model of the bundle in `folder` and with transformers.

    Raises CheckFailed where a stored tensor is not what transformers loads, UnsupportedModelError where it loads none.
    """
    if holds_codes(checkpoint):
        raise UnsupportedModelError(f"{checkpoint.folder}: is MX already; expected weights that transformers loads")
    config, length = checkpoint.config, len(texts[0])
    session = Session(folder, entry.model_copy(update={"context_length": length}), entry.vocab_size, SLOTS)
    if not reads_alike_anywhere(config, entry.context_length):
        session.first_position = entry.context_length - length
    readings = list(read_texts(session, texts))
    model = load_reference(checkpoint.folder, config)
    _merge_adapter(model, checkpoint)
    original = largest_difference(readings, oracle(model, session.first_position))
    with torch.no_grad():
        _store_weights(model, folder, entry, checkpoint)
    stored = largest_difference(readings, oracle(model, session.first_position))
    return OwnWeights(stored, original, TOLERANCE[entry.activations])


def _merge_adapter(model: PreTrainedModel, checkpoint: Checkpoint) -> None:
    """Put the weights that an adapter changes in the place of those that transformers loaded without it."""
    parameters = [name for name, _ in model.named_parameters()]
    for name, tensor in resolve_names(model, checkpoint.tensors, parameters).tensor_of.items():
        if isinstance(source := checkpoint.tensors[tensor], MergedTensor):
            model.get_parameter(name).data = torch.from_numpy(source.read_rows(0, source.shape[0]))


def _store_weights(model: PreTrainedModel, folder: Path, entry: ModelEntry, checkpoint: Checkpoint) -> None:
    """Put what the bundle stores in the place of the parameters that transformers loaded."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tensor_of = resolve_names(model, checkpoint.tensors, parameters).tensor_of
    parameter_of = {tensor: parameter for parameter, tensor in tensor_of.items()}
    twins = tied_names(model)
    for tensor in entry.tensors:
        alone = len(tensor.sources) == 1 and tensor.name in parameters  # a tied head has values of its own
        if missing := [source for source in tensor.sources if source not in checkpoint.tensors]:
            raise CheckpointError(f"{tensor.name} was made from {missing[0]!r}, which {checkpoint.folder} lacks")
        names = [tensor.name] if alone else [parameter_of[source] for source in tensor.sources]
        if names:
            values = _stored_values(folder / entry.weights, tensor)
            for parts in [[name] for name in twins[names[0]]] if tensor.looked_up else [names]:
                _replace(model, parts, tensor, values)


def _stored_values(path: Path, tensor: TensorEntry) -> Values:
    """float32 of the tensor's logical shape."""
    dtype, shape = stored_as(tensor.format, tensor.shape)
    if tensor.format in WEIGHT_FORMATS:
        packed = np.fromfile(path, np.uint8, tensor.bytes, offset=tensor.offset).reshape(shape)
        return unpack_values(packed, tensor.format, *tensor.shape)
    stored = {"F16": np.float16, "F32": np.float32}[dtype]
    values = np.fromfile(path, stored, tensor.bytes // DTYPE_BYTES[dtype], offset=tensor.offset)
    return values.reshape(shape).astype(np.float32)


def _replace(model: PreTrainedModel, names: Sequence[str], tensor: TensorEntry, values: Values) -> None:
    """Rows of `values` for each parameter; transposed where that is nearer to what is there (transformers' Conv1D)."""
    begin = 0
    for name in names:
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        before = getattr(module, attribute)
        found = list(_orientations(values, begin, before.numpy()))
        if not found:
            raise CheckpointError(
                f"{tensor.name} is {list(tensor.shape)} in the bundle, {name} {list(before.shape)} in the checkpoint: "
                "the bundle was made from another"
            )
        nearest, error = min(found, key=lambda each: each[1])
        if error > NEAR:
            raise CheckFailed(
                f"{tensor.name}: what the bundle stores is {error:.2f} away from {name}, which transformers loads from "
                f"the checkpoint, expected at most {NEAR}: a tensor was taken for another, or the checkpoint is another"
            )
        setattr(module, attribute, nn.Parameter(torch.from_numpy(nearest), requires_grad=False))
        begin += before.numel() // (values.size // len(values))


def _orientations(values: Values, begin: int, before: Values) -> Iterator[tuple[Values, float]]:
    """The rows from `begin` on, as they stand and transposed where shapes allow it; with the relative error of each."""
    scale = float(np.linalg.norm(before)) or 1.0
    for piece in (values[begin : begin + before.shape[0]], values[begin : begin + before.shape[-1]].T):
        if piece.shape == before.shape:
            yield np.ascontiguousarray(piece), float(np.linalg.norm(piece - before)) / scale
