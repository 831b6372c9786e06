"""Compare a compiled model with transformers' float32 forward of the checkpoint that it was made from.

The bundle's weights are unpacked and put into transformers' model, so that packed and fp16 models are compared alike:
only half-precision caches and rows of int16 differ. blurs.py judges what int8 rows and MXINT8 caches add. Each
stored tensor must also be near the parameter that transformers loaded. This finds an error that a twin cannot show: one
tensor in the place of another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from transformers import PreTrainedModel

from mxspec.compile.check.blurs import blurs_of, check_divergence, mean_divergence, without
from mxspec.compile.check.readings import LENGTH, SLOTS, Reading, Text, random_texts, read_texts, shortened
from mxspec.compile.check.reference import (
    Difference,
    first_positions,
    largest_difference,
    load_reference,
    median_difference,
    oracle,
    pad_of,
)
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.names import is_computed, resolve_names, tied_names
from mxspec.compile.checkpoint.tensors.derived import Ids
from mxspec.compile.planning.plan import head_parameters
from mxspec.formats.errors import CheckFailed, CheckpointError
from mxspec.formats.manifest import BlurName, ModelEntry, TensorEntry
from mxspec.formats.safetensors_file import DTYPE_BYTES
from mxspec.formats.tiles import unpack_values
from mxspec.formats.weight_format import WEIGHT_FORMATS, stored_as
from mxspec.runtime.models.session import Session

MOST_BYTES = 3 << 28  # limit of float32 weights, so that a compile stays within 2 GB
TOLERANCE = 1e-2  # of the largest logit: caches of trained models are rounded to half precision
NEAR = 0.5  # relative error of a stored tensor; the coarsest format takes 0.15, another tensor is 1.4 away

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class OwnWeights:
    """The difference of logits from transformers' with the bundle's weights, of a model without blurs.

    `divergences`: the KL divergence in nats that each rounding of the model causes.
    """

    stored: Difference
    divergences: dict[BlurName, float]

    def check(self, entry: ModelEntry) -> None:
        """Raise CheckFailed unless a model's logits are those of the weights that it stores."""
        if self.stored.error > TOLERANCE:
            raise CheckFailed(
                f"{entry.graph}: differs from transformers with the same weights by {self.stored.error:.1e} of the "
                f"largest logit ({self.stored.way}), expected at most {TOLERANCE:.0e}: the bundle is wrong"
            )
        for blur, divergence in self.divergences.items():
            check_divergence(blur, divergence, entry)


def check_own_weights(
    folder: Path, entry: ModelEntry, checkpoint: Checkpoint, rows: Ids | None = None
) -> OwnWeights | None:
    """Compare a model with its stored weights on random texts; None if the model is too large to compare.

    `rows` int64[n] are those of the checkpoint's head that the model has, if these are not all.

    Raises CheckFailed if the logits are not those of the stored weights, or a tensor differs from the one that
    transformers loads.
    """
    needed = sum(math.prod(tensor.shape) * 4 for tensor in checkpoint.tensors.values())
    if needed > min(MOST_BYTES, available_memory() // 3):
        return None
    texts = random_texts(entry.vocab_size, min(LENGTH, entry.context_length), but=pad_of(checkpoint.config))
    comparison = _Comparison.begin(folder, entry, checkpoint, texts, rows)
    found = comparison.with_stored(folder, entry, checkpoint)
    found.check(entry)
    return found


def available_memory() -> int:
    """Bytes of memory that the system can give without swapping."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def compare_own_weights(
    folder: Path, entry: ModelEntry, checkpoint: Checkpoint, texts: Sequence[Text], rows: Ids | None = None
) -> tuple[OwnWeights, Difference]:
    """Read four texts with a model of the bundle in `folder` and with transformers, once with each set of weights.

    The second value is the difference from transformers with the checkpoint's weights.

    Raises CheckFailed if a stored tensor differs from the one that transformers loads.
    """
    comparison = _Comparison.begin(folder, entry, checkpoint, texts, rows)
    original = comparison.difference()
    return comparison.with_stored(folder, entry, checkpoint), original


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The logits of a bundle's model for texts that begin at a position, and transformers' model to compare with."""

    readings: Sequence[Reading]
    divergences: dict[BlurName, float]
    first_position: int
    model: PreTrainedModel
    rows: Ids | None

    @classmethod
    def begin(
        cls, folder: Path, entry: ModelEntry, checkpoint: Checkpoint, texts: Sequence[Text], rows: Ids | None
    ) -> Self:
        """Read the texts, and load transformers' model with the checkpoint's weights."""
        config, length = checkpoint.config, len(texts[0])
        first_position = min(first_positions(config, entry.context_length, entry.context_length - length))
        read = partial(_read, texts=texts, first_position=first_position)
        blurs = blurs_of(entry)
        with without(folder, entry, blurs) as exact:
            readings = read(*exact)
        divergences = {}
        for blur in blurs:
            with without(folder, entry, [other for other in blurs if other != blur]) as rounded:
                divergences[blur] = mean_divergence(readings, read(*rounded))
        return cls(readings, divergences, first_position, load_reference(checkpoint, config), rows)

    def with_stored(self, folder: Path, entry: ModelEntry, checkpoint: Checkpoint) -> OwnWeights:
        """Give transformers' model the weights of the bundle, and compare."""
        with torch.no_grad():
            _store_weights(self.model, folder, entry, checkpoint, self.rows)
        return OwnWeights(self.difference(), self.divergences)

    def difference(self) -> Difference:
        """The largest difference, a mixture's median one, with the current weights of transformers' model."""
        compare = median_difference if expert_matrices(self.model) else largest_difference
        return compare(self.readings, oracle(self.model, self.first_position), self.rows)


def _read(folder: Path, entry: ModelEntry, texts: Sequence[Text], first_position: int) -> list[Reading]:
    session = Session(folder, shortened(entry, len(texts[0])), entry.vocab_size, SLOTS)
    session.first_position = first_position
    return list(read_texts(session, texts))


def _store_weights(
    model: PreTrainedModel, folder: Path, entry: ModelEntry, checkpoint: Checkpoint, rows: Ids | None
) -> None:
    """Replace the parameters that transformers loaded by the bundle's weights; of the head only `rows`, if given."""
    heads = set() if rows is None else head_parameters(model)
    named = model.named_parameters(remove_duplicate=False)
    parameters = {name for name, _ in named if not is_computed(model, name)}
    tensor_of = resolve_names(model, checkpoint.tensors, parameters).tensor_of
    parameter_of = {checkpoint.tensors[tensor].name: parameter for parameter, tensor in tensor_of.items()}
    held = {tensor.name for tensor in checkpoint.tensors.values()}
    twins = tied_names(model)
    for tensor in entry.tensors:
        alone = len(tensor.sources) == 1 and tensor.name in parameters  # a tied head is stored separately
        if missing := [source for source in tensor.sources if source not in held]:
            raise CheckpointError(f"{tensor.name} was made from {missing[0]!r}, which {checkpoint.folder} lacks")
        names = [tensor.name] if alone else [parameter_of[source] for source in tensor.sources]
        if names:
            values = _stored_values(folder / entry.weights, tensor)
            if rows is not None and tensor.name in heads:
                _replace_rows(model, tensor, values, rows)
                continue
            for parts in _tied(model, tensor, names, twins):
                _replace(model, parts, tensor, values)


def _tied(
    model: PreTrainedModel, tensor: TensorEntry, names: list[str], twins: Mapping[str, set[str]]
) -> list[list[str]]:
    """The parameters that a tensor is the values of: all that are tied where it is embedding and head, the embeddings
    alone where the head has values of its own."""
    tables = {path for path, module in model.named_modules() if isinstance(module, nn.Embedding)}
    if tensor.looked_up:
        return [[name] for name in twins[names[0]]]
    if names[0].rpartition(".")[0] in tables:
        return [[name] for name in twins[names[0]] if name.rpartition(".")[0] in tables]
    return [names]


def _stored_values(path: Path, tensor: TensorEntry) -> Values:
    """The tensor's values, float32 of its logical shape."""
    dtype, shape = stored_as(tensor.format, tensor.shape)
    if tensor.format in WEIGHT_FORMATS:
        packed = np.fromfile(path, np.uint8, tensor.bytes, offset=tensor.offset).reshape(shape)
        return unpack_values(packed, tensor.format, *tensor.shape)
    stored = {"F16": np.float16, "F32": np.float32}[dtype]
    values = np.fromfile(path, stored, tensor.bytes // DTYPE_BYTES[dtype], offset=tensor.offset)
    return values.reshape(shape).astype(np.float32)


def _replace(model: PreTrainedModel, names: Sequence[str], tensor: TensorEntry, values: Values) -> None:
    """Assign rows of `values` to each parameter, transposed if that is nearer to its values (transformers' Conv1D)."""
    begin, experts = 0, expert_matrices(model)
    for name in names:
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        before = getattr(module, attribute)
        if name in experts:
            values = experts[name].as_parameter(values)
        found = list(_orientations(values, begin, before.numpy()))
        if not found:
            raise CheckpointError(
                f"{tensor.name} is {list(tensor.shape)} in the bundle, {name} {list(before.shape)} in the checkpoint: "
                "the bundle was made from another checkpoint"
            )
        nearest, _ = min(found, key=lambda each: each[1])
        _require_near(nearest, before.numpy(), tensor, name)
        setattr(module, attribute, nn.Parameter(torch.from_numpy(nearest), requires_grad=False))
        begin += before.numel() // (values.size // len(values))


def _replace_rows(model: PreTrainedModel, tensor: TensorEntry, values: Values, rows: Ids) -> None:
    """Assign `values` to these rows of a parameter, which is not tied any more."""
    owner, _, attribute = tensor.name.rpartition(".")
    module = model.get_submodule(owner)
    whole = getattr(module, attribute).numpy().copy()
    _require_near(values, whole[rows], tensor, tensor.name)
    whole[rows] = values
    setattr(module, attribute, nn.Parameter(torch.from_numpy(whole), requires_grad=False))


def _require_near(values: Values, before: Values, tensor: TensorEntry, name: str) -> None:
    """Raise CheckFailed unless stored values are those that transformers loaded, but for rounding."""
    error = float(np.linalg.norm(values - before)) / (float(np.linalg.norm(before)) or 1.0)
    if error > NEAR:
        raise CheckFailed(
            f"{tensor.name}: what the bundle stores is {error:.2f} away from {name}, which transformers loads from "
            f"the checkpoint, expected at most {NEAR}: a tensor was taken for another, or the checkpoint is another"
        )


def _orientations(values: Values, begin: int, before: Values) -> Iterator[tuple[Values, float]]:
    """The rows from `begin` on, as stored and, if shapes allow, transposed; each with its relative error."""
    scale = float(np.linalg.norm(before)) or 1.0
    for piece in (values[begin : begin + before.shape[0]], values[begin : begin + before.shape[-1]].T):
        if piece.shape == before.shape:
            yield np.ascontiguousarray(piece), float(np.linalg.norm(piece - before)) / scale
