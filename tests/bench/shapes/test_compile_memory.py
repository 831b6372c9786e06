"""The checkpoints of compile-memory are whole ones, stored as the published ones are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.shapes.compile_memory import write_checkpoint
from bench.shapes.known import MIXTURES, SHAPES
from mxspec.compile.checkpoint.checkpoint import Checkpoint, require_complete
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.names import resolve_names
from mxspec.compile.checkpoint.tensors.expert_tensors import StackedTensor
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor

SIZES = {"vocab_size": 272, "hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "context_length": 96}
OF_EXPERTS = {"expert_width": 32, "experts": 4, "chosen": 2, "head_size": 16}


@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_are_stored_as_they_are_published(name: str, tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path, replace(MIXTURES[name], **SIZES | OF_EXPERTS))
    with Checkpoint(tmp_path) as checkpoint:
        require_complete(checkpoint)
        names = resolve_names(checkpoint.named, checkpoint.tensors, expert_matrices(checkpoint.named)).tensor_of
        kinds = {type(checkpoint.tensors[tensor]) for tensor in names.values()}
        assert len(names) == 4
        assert kinds == {MxTensor if name == "gpt-oss-20b" else StackedTensor}
        assert weights == sum(parameter.numel() for parameter in checkpoint.named.parameters())


def test_plain_decoders_are_whole(tmp_path: Path) -> None:
    weights = write_checkpoint(tmp_path, replace(SHAPES["tinyllama-1.1b"], **SIZES, intermediate_size=96))
    with Checkpoint(tmp_path) as checkpoint:
        require_complete(checkpoint)
    layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96 + 2 * 64
    assert weights == 2 * 272 * 64 + 64 + 2 * layer
