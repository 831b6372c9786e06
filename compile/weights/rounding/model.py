"""Round a whole model, one decoder layer after the other, each with the outputs of the rounded layers before it.

Two streams of hidden states run through the model: the exact stream has the checkpoint's weights, the other one the
rounded weights. A matrix W reads x in the exact stream and y in the rounded one. Before its rounding errors are
compensated it moves, so that W' y comes near W x (asymmetric calibration; Li et al. 2025,
https://arxiv.org/abs/2504.02692):

    W' = W + share W E[(x - y) y^T] (E[y y^T] + damping)^-1

with both x and y divided by the length of y, so that each token counts alike. The share is 1 for a text like those that
the model will see, and less for one that the model wrote: what makes up for the drift on one kind of text fits others
less.

The matrices of a layer are rounded in the order of their use, so that y contains the errors of all rounded matrices
before W (GPTQ's "true sequential"). Matrices that read the same tensor are rounded together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.progress import Advance
from mxspec.compile.weights.rounding.experts import FEW, ExpertsInputs, LayerExperts, round_experts
from mxspec.compile.weights.rounding.forward import LayeredModel, Matrices
from mxspec.compile.weights.rounding.matrix import MatrixSource, round_matrix
from mxspec.compile.weights.rounding.moments import Moments, Reads, factor_of
from mxspec.compile.weights.rounding.store import RoundedMatrix, RoundingStore
from mxspec.compile.weights.rounding.text import CalibrationText
from mxspec.runtime.memory import trim

OWN_SHARE = 0.5
"""On SmolLM2-135M and text of another kind, KL 0.038 nats; with a share of 1 0.043, without 0.053."""
PASS_BYTES = 640 << 20  # of activations and moments while windows run through a layer; 7B's run one by one
_ACTIVATIONS = 4  # as large as a layer's widest: gate, up, their product, and hidden states
Groups = dict[str, list[str]]  # matrices that read the same tensor, by the first of them, in the order of their use


@dataclass(slots=True)
class _Layer:
    """A layer that is being rounded, and what is known of the inputs of its matrices and experts."""

    batches: list[slice]
    matrices: Matrices
    experts: Mapping[str, LayerExperts]
    groups: Groups
    waiting: dict[str, set[int]]  # by group: the batches whose inputs are missing
    moments: dict[str, Moments] = field(default_factory=dict)  # by group
    chosen: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # by batch, of the layer's experts
    done: dict[str, RoundedMatrix] = field(default_factory=dict)

    @property
    def missing(self) -> int:
        """The number of inputs that are missing."""
        return sum(map(len, self.waiting.values()))

    def arrives(self, group: str, batch: int) -> bool:
        """Take a batch off those that a group waits for; whether it was one of them."""
        waits = batch in self.waiting[group]
        self.waiting[group].discard(batch)
        return waits


class ModelRounder:
    """Rounds the matrices of a model that have a format in `formats`, by parameter name."""

    def __init__(
        self,
        model: LayeredModel,
        sources: Tensors,
        formats: Mapping[str, str],
        store: RoundingStore,
    ) -> None:
        self._model, self._sources, self._formats, self._store = model, sources, formats, store
        self._share = 1.0

    def run(self, text: CalibrationText, advance: Advance) -> dict[str, RoundedMatrix]:
        """Rounded matrices by parameter name; resumes where the store of an earlier run ends."""
        rounded: dict[str, RoundedMatrix] = {}
        self._share = OWN_SHARE if text.own else 1.0
        for index in range(len(self._model.layers) + 1):
            done = self._store.finished_layer(index)
            if done is None:
                if index == 0:
                    self._embed(text)
                done = self._round_head() if index == len(self._model.layers) else self._round_layer(index)
                self._store.finish_layer(index, done)
            advance(_layer_work(self._model, self._sources, self._formats, index, text.tokens))
            rounded |= done
        return rounded

    def _round_layer(self, index: int) -> dict[str, RoundedMatrix]:
        matrices = {name: module for name, module in self._model.matrices(index).items() if name in self._formats}
        experts = {
            name: layer
            for name, layer in self._model.experts(index).items()
            if self._formats.keys() & layer.parameters.values()
        }
        trim()
        with self._model.loaded(index):
            groups = self._run_exact(index, matrices, experts)
            return self._run_rounded(index, matrices, experts, groups)

    def _run_exact(self, index: int, matrices: Matrices, experts: Mapping[str, LayerExperts]) -> Groups:
        """Store the outputs of the checkpoint's layer and the inputs of its matrices and experts; return the groups."""
        inputs = self._store.inputs(f"exact-{index}")
        outputs = self._store.create_inputs(f"exact-{index + 1}", inputs.shape)
        groups: Groups = {}

        def keep(reads: Reads, batch: slice, name: str, values: Tensor) -> None:
            if name not in matrices:
                return
            first = reads.first_of(name, values)
            if first == name:
                store(batch, name, values)
            if name not in groups.setdefault(first, []):
                groups[first].append(name)

        def keep_experts(batch: slice, name: str, values: Tensor, chosen: Tensor) -> None:
            if name in experts:
                store(batch, name, values)
                groups[name] = [name]

        def store(batch: slice, name: str, values: Tensor) -> None:
            place = (*inputs.shape[:2], values.shape[-1])
            kept = self._store.inputs(name) if name in groups else self._store.create_inputs(name, place)
            kept[batch] = values.numpy().reshape(-1, *place[1:])  # OPT and mixtures flatten them

        for batch in self._batches(index, inputs):
            told = partial(keep, Reads(), batch), partial(keep_experts, batch)
            outputs[batch] = self._model.run(index, _tensor(inputs[batch]), *told).numpy()
        return groups

    def _run_rounded(
        self, index: int, matrices: Matrices, experts: Mapping[str, LayerExperts], groups: Groups
    ) -> dict[str, RoundedMatrix]:
        """Round each group of a loaded layer's matrices as soon as its inputs in all batches are known.

        The batch that adds the last inputs of a group continues through the rounded matrices; the others start again.
        """
        inputs = self._store.inputs(f"rounded-{index}")
        outputs = self._store.create_inputs(f"rounded-{index + 1}", inputs.shape)
        batches = self._batches(index, inputs)
        layer = _Layer(batches, matrices, experts, groups, {name: set(range(len(batches))) for name in groups})
        unfinished = list(range(len(batches)))
        while unfinished:
            left = layer.missing
            for number in list(unfinished):
                told = partial(self._reach, layer, number), partial(self._reach_experts, layer, number)
                hidden = self._model.run(index, _tensor(inputs[batches[number]]), *told)
                if not layer.waiting:
                    outputs[batches[number]] = hidden.numpy()
                    unfinished.remove(number)
            if layer.waiting and layer.missing == left:  # rounding changed which matrices the model uses
                layer.waiting.clear()
        unseen = {name: module for name, module in matrices.items() if name not in layer.done}
        return layer.done | self._round_matrices(unseen, None, write_back=True)

    def _reach(self, layer: _Layer, number: int, name: str, values: Tensor) -> bool:
        """Take the inputs of a matrix in a batch; whether its group waits for other batches, so this one cannot go on.

        The last inputs of a group have its matrices rounded.
        """
        if name not in layer.waiting:
            return False
        if layer.arrives(name, number):
            if name not in layer.moments:
                layer.moments[name] = self._moments(name, values.shape[-1])
            exact = self._store.inputs(name)[layer.batches[number]]
            for of_rounded, of_exact in zip(values.reshape(exact.shape), exact, strict=True):
                layer.moments[name].add(of_rounded, _tensor(of_exact))  # a window at a time: they may be large
        if layer.waiting[name]:
            return True
        del layer.waiting[name]
        members = {member: layer.matrices[member] for member in layer.groups[name]}
        layer.done |= self._round_matrices(members, layer.moments.pop(name), write_back=True)
        self._store.remove_inputs(name)
        self._store.remove_inputs(_drift(name))
        return False

    def _reach_experts(self, layer: _Layer, number: int, name: str, values: Tensor, choice: Tensor) -> bool:
        """The same for a layer's experts, and which of them each token of the batch chose."""
        if name not in layer.waiting:
            return False
        exact, beside = self._store.inputs(name), f"rounded-{name}"
        if layer.arrives(name, number):
            kept = self._store.inputs(beside) if layer.chosen else self._store.create_inputs(beside, exact.shape)
            kept[layer.batches[number]] = values.numpy().reshape(-1, *exact.shape[1:])
            layer.chosen[number] = choice.numpy().copy()
        if layer.waiting[name]:
            return True
        del layer.waiting[name]
        rounded, exact = (rows.reshape(-1, exact.shape[-1]) for rows in (self._store.inputs(beside), exact))
        read = ExpertsInputs(rounded, exact, np.concatenate([layer.chosen[batch] for batch in sorted(layer.chosen)]))
        moments_of = partial(self._moments, name)
        layer.done |= round_experts(layer.experts[name], read, self._sources, self._formats, self._store, moments_of)
        layer.chosen.clear()
        for file in (name, beside, _drift(name)):
            self._store.remove_inputs(file)
        return False

    def _batches(self, index: int, inputs: NDArray[np.float32]) -> list[slice]:
        """The batches of windows that run through a layer together: as many windows as fit beside the moments."""
        widest = max(max(module.weight.shape) for module in self._model.matrices(index).values())
        count = max(1, (PASS_BYTES - 4 * widest**2) // (_ACTIVATIONS * 4 * inputs.shape[1] * widest))
        return [slice(begin, begin + count) for begin in range(0, len(inputs), count)]

    def _round_head(self) -> dict[str, RoundedMatrix]:
        index = len(self._model.layers)
        matrices = {name: module for name, module in self._model.matrices(index).items() if name in self._formats}
        if not matrices:
            return {}
        moments: Moments | None = None
        for exact, rounded in zip(
            self._store.inputs(f"exact-{index}"), self._store.inputs(f"rounded-{index}"), strict=True
        ):
            of_exact, of_rounded = (self._model.run(index, _tensor(hidden)[None]) for hidden in (exact, rounded))
            if moments is None:
                moments = self._moments("head", of_rounded.shape[-1])
            moments.add(of_rounded, of_exact)
        done = self._round_matrices(matrices, moments, write_back=False)
        self._store.remove_inputs(_drift("head"))
        return done

    def _moments(self, name: str, k: int) -> Moments:
        """Moments of the inputs of some matrices; the drift is in a file, so that memory need not hold it too."""
        return Moments(k, self._share, self._store.create_inputs(_drift(name), (k, k)))

    def _embed(self, text: CalibrationText) -> None:
        kept: list[NDArray[np.float32]] = []
        for window, hidden in enumerate(self._model.embed(text.windows)):
            if not kept:
                shape = (len(text.windows), *hidden.shape[1:])
                kept = [self._store.create_inputs(f"{stream}-0", shape) for stream in ("exact", "rounded")]
            for inputs in kept:
                inputs[window] = hidden[0].numpy()

    def _round_matrices(
        self, matrices: Matrices, moments: Moments | None, *, write_back: bool
    ) -> dict[str, RoundedMatrix]:
        """Round matrices that read the same tensor."""
        trim()  # what the windows' activations leave in the allocator
        factor, fallback = factor_of(moments)
        done: dict[str, RoundedMatrix] = {}
        for name, module in matrices.items():
            source = MatrixSource.of(self._sources[name], module, self._formats[name])
            tiles = self._store.create_tiles(name, source.format_name, *source.shape)
            weight = module.weight.numpy() if write_back else None
            statistics = round_matrix(source, factor, tiles, weight)
            done[name] = RoundedMatrix(self._store.tiles_path(name), statistics, fallback)
        return done


def _drift(name: str) -> str:
    return f"drift-{name}"


def rounding_work(model: LayeredModel, sources: Tensors, formats: Mapping[str, str], tokens: int) -> int:
    """The approximate number of multiplications for rounding a whole model."""
    return sum(_layer_work(model, sources, formats, index, tokens) for index in range(len(model.layers) + 1))


def _layer_work(model: LayeredModel, sources: Tensors, formats: Mapping[str, str], index: int, tokens: int) -> int:
    """The multiplications of two forward passes, of moments, factors and compensation."""
    work = 0
    for layer in model.experts(index).values():
        for name, parameter in layer.parameters.items():
            of = layer.matrices[name]
            work += 4 * tokens * of.rows * of.k  # of the few experts that a token chooses
            work += of.experts * of.k**2 * (2 * FEW + of.k // 3 + 3 * of.rows) if parameter in formats else 0
    for name, module in model.matrices(index).items():
        if index < len(model.layers):
            work += 2 * tokens * module.weight.numel()
        if name in formats:
            n, k = MatrixSource.of(sources[name], module, formats[name]).shape
            work += k * k * (2 * tokens + k // 3 + 3 * n)
    return work


def _tensor(hidden: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.array(hidden))
