"""The expected loss of each matrix in each of its formats, in nats a token.

To second order, moving a matrix W by E moves the model's distribution by

    KL = 1/2 E[(d log p(y) / dW . E)^2],  y drawn from the model itself

(Fisher information; Martens 2014, https://arxiv.org/abs/1412.1193, section 9.2, explains why y is drawn and not read
from the text). A window with one label drawn for each of its tokens gives one gradient G, because the scores of
different tokens are uncorrelated. The rounding errors of different rows of W are assumed to be uncorrelated as well, so

    loss = 1/2 sum over rows r, mean over tokens, of (G_r . E_r)^2,

which has n terms for each window, where (G . E)^2 has one, and therefore far less noise. Losses of several matrices are
added up.

Of a mixture's experts, G is summed over the tokens that chose the expert, and all experts of a layer are added up.

The model is streamed: forward layer by layer, keeping each layer's input; then backward, running each layer again.
Files hold the inputs of its products and the gradients of their outputs, from which G is made, some rows of a matrix at
a time.

If a head's rows are also looked up as the embedding, that loss is added: it comes from the gradient of the first
layer's input, as if it belonged to another matrix.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mxspec.compile.checkpoint.tensors.tensor import Tensors
from mxspec.compile.progress import Advance
from mxspec.compile.weights.budget.experts import Losses, experts_losses
from mxspec.compile.weights.budget.loss import (
    Values,
    head_losses,
    layer_losses,
    lookup_loss,
    lossy,
    round_as,
    rounding_errors,
)
from mxspec.compile.weights.budget.tape import Tape
from mxspec.compile.weights.rounding.experts import ExpertsInputs
from mxspec.compile.weights.rounding.forward import LayeredModel
from mxspec.compile.weights.rounding.matrix import MatrixSource
from mxspec.compile.weights.rounding.moments import Factor, SharedMoments, factor_of
from mxspec.compile.weights.rounding.store import RoundingStore
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import Rounding

_LOGITS = 16 << 20  # logits made at a time
_CHOSEN = 4  # experts that a token is taken to choose, where only progress depends on it


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a layer reads in the windows of a trial rounding: moments, and the rows and choices of its experts."""

    windows: Values
    moments: SharedMoments = field(default_factory=SharedMoments)
    rows: dict[str, Values] = field(default_factory=dict)
    chosen: dict[str, list[NDArray[np.int64]]] = field(default_factory=dict)

    def of_experts(self, name: str) -> ExpertsInputs | None:
        """None if nothing was tried."""
        if name not in self.rows:
            return None
        return ExpertsInputs(self.rows[name], self.rows[name], np.concatenate(self.chosen[name]))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Measures matrices in the formats that `formats` lists for them, by parameter name.

    Losses are measured on the first `scored` windows; `gptq` is tried with moments of the others, if there are any.
    `looked_up` names the head if its rows are also the embedding's.
    """

    model: LayeredModel
    sources: Tensors
    formats: Mapping[str, Sequence[str]]
    rounding: Rounding
    store: RoundingStore
    random: torch.Generator
    looked_up: Collection[str] = ()
    factors: dict[str, Factor | None] = field(default_factory=dict)  # with which the matrices were rounded

    def work(self, windows: NDArray[np.int64], scored: int) -> int:
        """The approximate number of multiplications: two passes each way, or one forward without scored windows."""
        weights = sum(self._weights(index) for index in range(self._layers + 1))
        return int(weights * (len(windows) + 3 * scored) * windows.shape[1])

    def run(self, windows: NDArray[np.int64], scored: int, advance: Advance) -> Losses:
        """The loss of each matrix of the decoder layers and the head in each of its formats, in nats a token."""
        self._forward(windows, advance)
        losses: Losses = {}
        gradient = np.empty((0,), np.float32)  # of the last layer's output: the head computes its own
        for index in range(self._layers, -1, -1):
            found, gradient = self._backward(index, gradient, scored, advance)
            losses |= found
            if index == 0:
                self._add_lookups(windows[:scored], gradient, losses)
            self.store.remove_inputs(index)
        return losses

    @property
    def _layers(self) -> int:
        return len(self.model.layers)

    def _forward(self, windows: NDArray[np.int64], advance: Advance) -> None:
        """Keep the inputs of every layer, and of the last norm."""
        self._keep(0, len(windows), self.model.embed(windows))
        for index in range(self._layers):
            inputs = self.store.inputs(index)
            with self.model.loaded(index):
                self._keep(index + 1, len(inputs), self._outputs(index, inputs, advance))

    def _outputs(self, index: int, inputs: Values, advance: Advance) -> Iterator[Tensor]:
        for hidden in inputs:
            yield self.model.run(index, _tensor(hidden))
            advance(self._weights(index) * len(hidden))

    def _keep(self, index: int, count: int, hidden: Iterator[Tensor]) -> None:
        first = next(hidden)
        kept = self.store.create_inputs(index, (count, *first.shape[1:]))
        kept[0] = first[0].numpy()
        for window, values in enumerate(hidden, 1):
            kept[window] = values[0].numpy()

    def _backward(self, index: int, gradient: Values, scored: int, advance: Advance) -> tuple[Losses, Values]:
        """Losses of a layer's matrices, and the gradient of the layer's input."""
        inputs = self.store.inputs(index)
        length, weights = inputs.shape[1], self._weights(index)
        tape = Tape(self.store.folder / "tape", scored, length)
        before = np.empty((scored, *inputs.shape[1:]), np.float32)
        with self.model.loaded(index):
            for window in range(scored):
                for rows in self._pieces(index, length):
                    after = None if index == self._layers else _tensor(gradient[window, rows])
                    found = self._pull(index, _tensor(inputs[window, rows]), after, tape)
                    before[window, rows] = found[0].numpy()
                    tape.keep(window, rows, found[1:])
                advance(2 * weights * length)
            trial = _Trial(inputs[scored:] if len(inputs) > scored else inputs)
            if self.rounding == "gptq":
                self._try(index, trial)
            losses = self._experts_losses(index, tape, trial)
        losses |= self._losses(index, tape, trial.moments)
        tape.remove()
        advance(weights * scored * length)
        return losses, before

    def _pieces(self, index: int, length: int) -> Iterator[slice]:
        """Whole windows; fewer tokens at a time for the head, because of its logits."""
        (head,) = self.model.matrices(self._layers).values()
        step = max(1, _LOGITS // max(head.weight.shape)) if index == self._layers else length
        for begin in range(0, length, step):
            yield slice(begin, min(begin + step, length))

    def _pull(self, index: int, hidden: Tensor, after: Tensor | None, tape: Tape) -> list[Tensor]:
        """Gradients of a loaded layer's inputs and products, from those of its outputs.

        For the head, without gradients of outputs, they come from the log probability of drawn labels.
        """
        output = self.model.trace(index, hidden.requires_grad_(), tape.on_product, tape.on_experts)
        if after is None:
            logs = torch.log_softmax(output[0], dim=-1)
            labels = torch.multinomial(logs.detach().exp(), 1, generator=self.random)
            output = logs.gather(1, labels).sum()
        return list(torch.autograd.grad(output, [hidden, *tape.made], after))

    def _try(self, index: int, trial: _Trial) -> None:
        """Note what a loaded layer's matrices and experts read in the windows of a trial rounding."""
        for hidden in trial.windows:
            trial.moments.begin_window()
            self.model.run(index, _tensor(hidden), trial.moments.add, partial(self._add_rows, trial))
        trial.moments.begin_window()

    def _add_rows(self, trial: _Trial, name: str, rows: Tensor, chosen: Tensor) -> None:
        """Note the rows [tokens, k] that a layer's experts read, and their choice; the rows lie in a file."""
        seen = trial.chosen.setdefault(name, [])
        count = sum(map(len, seen))
        length, width = len(rows.view(-1, rows.shape[-1])), rows.shape[-1]
        if not seen:
            trial.rows[name] = self.store.create_inputs(f"trial-{name}", (len(trial.windows) * length, width))
        trial.rows[name][count : count + length] = rows.view(-1, width).numpy()
        seen.append(chosen.numpy().astype(np.int64))

    def _experts_losses(self, index: int, tape: Tape, trial: _Trial) -> Losses:
        losses: Losses = {}
        for name, experts in self.model.experts(index).items():
            losses |= experts_losses(name, experts, tape, trial.of_experts(name), self.formats, self.rounding)
            trial.rows.clear()
            self.store.remove_inputs(f"trial-{name}")
        return losses

    def _losses(self, index: int, tape: Tape, moments: SharedMoments) -> Losses:
        losses: Losses = {}
        matrices = {name: module for name, module in self.model.matrices(index).items() if name in self.formats}
        groups = moments.groups() or {name: [name] for name in matrices}
        measure = head_losses if index == self._layers else partial(layer_losses, tokens=tape.tokens)
        for first, names in groups.items():
            factor, _ = factor_of(moments.sums.pop(first, None))
            for name in names:
                if name in self.looked_up:
                    self.factors[name] = factor
                if name in matrices:
                    source = MatrixSource.of(self.sources[name], matrices[name], FP16_TILES)
                    formats = self.formats[name]
                    errors = rounding_errors(source.read, source.shape[0], lossy(formats), self.rounding, factor)
                    read, made = tape.inputs(name), tape.gradients(name)
                    found = measure(read, made, errors) if lossy(formats) else {}
                    losses[name] = {kind: found.get(kind, 0.0) for kind in formats}
        return losses

    def _add_lookups(self, ids: NDArray[np.int64], gradient: Values, losses: Losses) -> None:
        """Add the loss of a table in which tokens are looked up; `gradient` is that of the looked-up rows."""
        exact = self.store.inputs(0)
        for name in self.looked_up:
            for kind in lossy(self.formats[name]):
                rounded = partial(round_as, format_name=kind, rounding=self.rounding, factor=self.factors[name])
                hidden = self.model.embed(ids, rounded)
                moved = (values[0].numpy() - before for values, before in zip(hidden, exact, strict=False))
                losses[name][kind] += lookup_loss(ids, gradient, moved)

    def _weights(self, index: int) -> int:
        """The weights that a token is multiplied with."""
        experts = (matrix for layer in self.model.experts(index).values() for matrix in layer.matrices.values())
        dense = sum(module.weight.numel() for module in self.model.matrices(index).values())
        return dense + sum(_CHOSEN * matrix.rows * matrix.k for matrix in experts)


def _tensor(values: Values) -> Tensor:
    return torch.from_numpy(np.array(values))[None]
