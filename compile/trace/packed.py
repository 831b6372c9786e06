"""Modules with packed weights while a model is traced: linear layers, the LM head, a mixture's experts.

transformers gives every mixture's experts one interface: the rows, the chosen experts, their weights. The function
between an expert's two products is recognised by its results on random numbers, never by its name.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mxspec.compile.checkpoint.experts import DOWN, GATE_UP
from mxspec.compile.graph.operators import PACKED_EXPERTS, PACKED_MATMUL
from mxspec.compile.trace.attention import CallInputs, emit, up_to_the_last
from mxspec.formats.errors import UnsupportedModelError
from mxspec.formats.weight_format import TILE_ROWS, Activations, packed_shape

Gate = Callable[[Tensor, Tensor], Tensor]
_ALPHA, _LIMIT = 1.702, 7.0  # gpt-oss's, where a module does not say


@dataclass(frozen=True, slots=True)
class MatmulSource:
    """The source of a packed weight [n, k], its stored format, and the type of its product's activations."""

    parameter: str
    format: str
    n: int
    k: int
    transpose: bool
    activations: Activations = "int16"

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a PackedMatMul node; int16 activations are the default and need none."""
        asked = {} if self.activations == "int16" else {"activations": self.activations}
        return {"K": self.k, "N": self.n, "format": self.format, **asked}


class PackedModule(nn.Module):
    """A module whose node reads packed weights: uint8 tile initializers, here without values, by their `sources`."""

    def __init__(self, sources: Mapping[str, MatmulSource]) -> None:
        super().__init__()
        self.sources = dict(sources)
        for name, source in sources.items():
            shape = packed_shape(source.format, source.n, source.k)
            setattr(self, name, nn.Buffer(torch.empty(shape, dtype=torch.uint8, device="meta")))

    @property
    @abstractmethod
    def attributes(self) -> dict[str, Any]:
        """The attributes of its node, which depend on the formats."""


class PackedLinear(PackedModule):
    """A linear layer that emits mxspec::PackedMatMul; its weight is the uint8 tile initializer."""

    weight: Tensor

    def __init__(self, source: MatmulSource, bias: nn.Parameter | None) -> None:
        super().__init__({"weight": source})
        self.source = source
        self.in_features, self.out_features = source.k, source.n
        self.bias = bias

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the PackedMatMul node."""
        return self.source.attributes

    def forward(self, x: Tensor) -> Tensor:
        inputs = x, self.weight, *up_to_the_last(self.bias)
        return emit(PACKED_MATMUL, inputs, self.attributes, (*x.shape[:-1], self.source.n))


class PackedLmHead(PackedLinear):
    """The LM head: selects the hidden states of the tokens in logits_to_keep, and multiplies only these.

    From hidden states float32[1, tokens, k] it makes float32[rows, n].
    """

    def __init__(self, source: MatmulSource, bias: nn.Parameter | None, call: CallInputs) -> None:
        super().__init__(source, bias)
        self._call = call

    def forward(self, x: Tensor) -> Tensor:
        positions = self._call.logits_to_keep
        assert positions is not None
        return super().forward(rows_at(x, positions))


def rows_at(x: Tensor, positions: Tensor) -> Tensor:
    """Rows [positions, width] of a value [1, tokens, width]."""
    return torch.onnx.ops.symbolic(
        "Gather", (x.squeeze(0), positions), {"axis": 0}, dtype=x.dtype, shape=(positions.shape[0], x.shape[-1])
    )


def _clamped(gate: Tensor, up: Tensor, alpha: float, limit: float) -> Tensor:
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * gate * torch.sigmoid(alpha * gate)


@dataclass(frozen=True, slots=True)
class GateRule:
    """What an expert does with gate and up: the operator's attributes, and whether rows of both alternate."""

    attributes: dict[str, Any]
    apply: Gate

    def split(self, values: Tensor) -> Tensor:
        """The result for [..., 2 inner] values, as the operator computes it."""
        if self.attributes.get("alternating"):
            return self.apply(values[..., ::2], values[..., 1::2])
        return self.apply(*values.chunk(2, dim=-1))


def _rules(module: nn.Module) -> list[GateRule]:
    alpha, limit = float(getattr(module, "alpha", _ALPHA)), float(getattr(module, "limit", _LIMIT))
    kinds: list[tuple[dict[str, Any], Gate]] = [
        ({"activation": "silu"}, lambda gate, up: functional.silu(gate) * up),
        ({"activation": "gelu_tanh"}, lambda gate, up: functional.gelu(gate, approximate="tanh") * up),
        (
            {"activation": "clamped_swiglu", "alpha": alpha, "limit": limit},
            partial(_clamped, alpha=alpha, limit=limit),
        ),
    ]
    return [GateRule(extra | kind, apply) for extra in ({}, {"alternating": 1}) for kind, apply in kinds]


def gate_rule(module: nn.Module) -> GateRule:
    """The rule of a module of experts. Raises UnsupportedModelError for one that the operator does not have."""
    name = type(module).__name__
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        raise UnsupportedModelError(f"{name}: experts without a gate, or with a norm of their own, are not supported")
    apply: Any = module._apply_gate
    values = 8 * torch.randn(4, 64, generator=torch.Generator().manual_seed(0))  # beyond the limits of clamped ones
    try:
        wanted = apply(values)
    except (RuntimeError, TypeError) as error:
        raise UnsupportedModelError(f"{name}: its gate cannot be computed by itself: {error}") from None
    for rule in _rules(module):
        if wanted.shape == (4, 32) and torch.allclose(rule.split(values), wanted, rtol=1e-5, atol=1e-5):
            return rule
    raise UnsupportedModelError(f"{name}: the activation of its experts is not supported")


class PackedExperts(PackedModule):
    """The experts of a layer, which emit mxspec::PackedExperts; their weights are tall uint8 tile initializers."""

    gate_up_proj: Tensor
    down_proj: Tensor

    def __init__(self, module: nn.Module, sources: Mapping[str, MatmulSource], experts: int) -> None:
        super().__init__(sources)
        self.experts, self.rule = experts, gate_rule(module)
        for name, source in self.sources.items():
            rows = source.n // experts
            if rows % TILE_ROWS:
                raise UnsupportedModelError(
                    f"{type(module).__name__}: {name} has {rows} rows for each expert, expected a multiple of "
                    f"{TILE_ROWS}"
                )
        self.gate_up_proj_bias = getattr(module, "gate_up_proj_bias", None)
        self.down_proj_bias = getattr(module, "down_proj_bias", None)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the node; int16 activations are the default and need none."""
        gate_up, down = self.sources[GATE_UP], self.sources[DOWN]
        asked = {
            name: source.activations
            for name, source in (("activations", gate_up), ("down_activations", down))
            if source.activations != "int16"
        }
        sizes = {"K": gate_up.k, "N": down.n // self.experts, "experts": self.experts, "inner": down.k}
        return {**sizes, "format": gate_up.format, "down_format": down.format, **asked, **self.rule.attributes}

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """float32[tokens, N] from rows float32[tokens, K], chosen experts int64[tokens, k] and their weights."""
        inputs = (
            *(hidden_states, top_k_index, top_k_weights, self.gate_up_proj, self.down_proj),
            *up_to_the_last(self.gate_up_proj_bias, self.down_proj_bias),
        )
        return emit(PACKED_EXPERTS, inputs, self.attributes, (*hidden_states.shape[:-1], self.attributes["N"]))
