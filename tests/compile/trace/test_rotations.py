"""How models rotate: each way is known by what it does, tables hold a column a pair, other ways stay as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.models.llama import modeling_llama

from mxspec.compile.graph.exported_graph import ExportedGraph
from mxspec.compile.trace.rotary import Rotation, rotation_of
from mxspec.compile.trace.skeleton import build_skeleton
from mxspec.formats.errors import UnsupportedModelError
from tests.compile.outlined import exported

CONTEXT = 32
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 120, "max_position_embeddings": 64, "head_dim": 16, "pad_token_id": None,
}  # fmt: skip
SIZES_OF_GPTJ = {"n_embd": 64, "n_head": 4, "n_layer": 1, "vocab_size": 120, "rotary_dim": 8, "n_positions": 64}


def make_config(model_type: str, **settings: Any) -> Any:
    sizes = SIZES_OF_GPTJ if model_type == "gptj" else SIZES
    return AutoConfig.for_model(model_type, **sizes | settings)


def export(**settings: Any) -> ExportedGraph:
    return exported(make_config("llama", **settings), CONTEXT, "float32")


@pytest.mark.parametrize(
    ("model_type", "rotation"),
    [
        ("llama", Rotation(pairs=False, neighbours=False)),
        ("phi", Rotation(pairs=False, neighbours=False)),
        ("cohere", Rotation(pairs=True, neighbours=True)),
        ("glm", Rotation(pairs=True, neighbours=False)),
        ("gptj", None),  # by tables of its own
    ],
)
def test_each_way_is_known(model_type: str, rotation: Rotation | None) -> None:
    assert rotation_of(build_skeleton(make_config(model_type), None)) == rotation


@pytest.mark.parametrize("neighbours", [False, True])
def test_halves_are_taken_where_they_repeat(neighbours: bool) -> None:
    rotation, half = Rotation(pairs=True, neighbours=neighbours), torch.randn(3, 4)
    table = rotation.double(half)
    first, second = (table[:, ::2], table[:, 1::2]) if neighbours else table.chunk(2, dim=1)
    assert torch.equal(first, half)
    assert torch.equal(second, half)
    assert torch.equal(rotation.halve(table), half)
    table[1, -1] += 1e-6
    with pytest.raises(UnsupportedModelError, match="two entries of a pair by different angles is not supported"):
        rotation.halve(table)


def test_an_unknown_rotation_keeps_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama's, turned the other way: spelled out in the graph, by tables as wide as it has them."""

    def backwards(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return tuple(x * cos - modeling_llama.rotate_half(x) * sin for x in (q, k))  # type: ignore[return-value]

    assert widths(export()) == {"cos": 8, "sin": 8}
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", backwards)
    exported = export()
    assert widths(exported) == {"cos": 16, "sin": 16}
    assert not any(node.op_type in ("RotaryEmbedding", "QkvAttention") for node in exported.model.graph)


def widths(exported: ExportedGraph) -> dict[str, int]:
    """Columns of the tables by position."""
    return {spec.name.rpartition(".")[2]: spec.shape[1] for spec in exported.weights if "rotary_emb" in spec.name}
