"""The losses of a layer's experts: of each matrix by the tokens that chose its expert.

A layer's experts give each token the sum of the chosen ones, each times its weight. So the gradients of all of an
expert's products follow from the gradient of this sum, one expert at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP
from mxspec.compile.weights.budget.loss import Values, layer_losses, lossy, rounding_errors
from mxspec.compile.weights.budget.tape import Tape
from mxspec.compile.weights.rounding.experts import ExpertsInputs, LayerExperts
from mxspec.compile.weights.rounding.moments import Factor, Moments, factor_of
from mxspec.recipes.recipe import Rounding

Losses = dict[str, dict[str, float]]  # nats a token, by parameter name and format


@dataclass(frozen=True, slots=True)
class _Pass:
    """A matrix of an expert in one window: inputs float32[tokens, k], and the gradients of its outputs [tokens, n]."""

    inputs: Values
    gradients: Values


def experts_losses(
    name: str,
    experts: LayerExperts,
    tape: Tape,
    trial: ExpertsInputs | None,
    formats: Mapping[str, Sequence[str]],
    rounding: Rounding,
) -> Losses:
    """The losses of a loaded layer's two tall matrices in the formats that `formats` lists for them, by parameter name.

    `name` is that of the experts on the tape; with `trial` inputs each expert is rounded by the tokens that chose it.
    """
    wanted = {leaf: lossy(formats[name]) for leaf, name in experts.parameters.items() if name in formats}
    sums = {leaf: dict.fromkeys(kinds, 0.0) for leaf, kinds in wanted.items() if kinds}
    for expert in range(experts.matrices[GATE_UP].experts):
        passes = list(_passes(name, experts, tape, expert))
        if not passes:
            continue
        factors = {} if trial is None else _factors(experts, expert, trial)
        for leaf, found in sums.items():
            weight = np.ascontiguousarray(experts.weight(leaf, expert).numpy())
            read = partial(_rows, weight)
            errors = rounding_errors(read, len(weight), wanted[leaf], rounding, factors.get(leaf))
            own = [each[leaf] for each in passes]
            lost = layer_losses([each.inputs for each in own], [each.gradients for each in own], errors, tape.tokens)
            for kind, loss in lost.items():
                found[kind] += loss
    return {
        parameter: {kind: sums.get(leaf, {}).get(kind, 0.0) for kind in formats[parameter]}
        for leaf, parameter in experts.parameters.items()
        if parameter in formats
    }


def _rows(weight: Values, begin: int, end: int) -> Values:
    return weight[begin:end]


def _passes(name: str, experts: LayerExperts, tape: Tape, expert: int) -> Iterator[dict[str, _Pass]]:
    """The windows in which a token chose the expert."""
    of_layer = (tape.inputs(name), tape.gradients(name), tape.chosen(name), tape.weights(name))
    for inputs, gradients, chosen, weights in zip(*of_layer, strict=True):
        tokens, ranks = np.nonzero(chosen == expert)
        if len(tokens):
            rows, worth = inputs[tokens], gradients[tokens] * weights[tokens, ranks, None]
            read, pulled = experts.pull(expert, torch.from_numpy(rows), torch.from_numpy(worth))
            yield {GATE_UP: _Pass(rows, pulled.numpy()), DOWN: _Pass(read.numpy(), worth)}


def _factors(experts: LayerExperts, expert: int, trial: ExpertsInputs) -> dict[str, Factor | None]:
    """The factors of the moments of what an expert's two matrices read."""
    tokens, _ = trial.tokens_of(expert)
    rows = torch.from_numpy(trial.exact[tokens])
    return {GATE_UP: _factor(rows), DOWN: _factor(experts.gated(expert, rows))}


def _factor(rows: Tensor) -> Factor | None:
    moments = Moments(rows.shape[1])
    moments.add(rows)
    return factor_of(moments)[0]
