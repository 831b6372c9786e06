"""Random gguf files: the peer's names and shapes, and as many weights as the published models have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from bench.llama_cpp.random_gguf import check_format, tensors_of, write_gguf
from bench.shapes.known import MIXTURES, SHAPES
from mxspec.formats.errors import MxspecError

PUBLISHED = {"olmoe-1b-7b": 6_919_161_856, "qwen3-30b-a3b": 30_532_122_624, "gpt-oss-20b": 20_914_757_184}
ARCHITECTURES = {
    "olmoe-1b-7b": gguf.MODEL_ARCH.OLMOE,
    "qwen3-30b-a3b": gguf.MODEL_ARCH.QWEN3MOE,
    "gpt-oss-20b": gguf.MODEL_ARCH.GPT_OSS,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_have_as_many_weights_as_the_published_models(name: str) -> None:
    tensors = list(tensors_of(MIXTURES[name], "f16"))
    sizes = [int(t.split()[1]) if isinstance(t, str) else int(np.prod(t.shape)) for t in tensors]
    assert sum(sizes) == PUBLISHED[name]
    names = {t.split()[0] if isinstance(t, str) else t.name for t in tensors}
    known = gguf.get_tensor_name_map(ARCHITECTURES[name], MIXTURES[name].layers).mapping.values()
    assert {tensor.rpartition(".")[0] for tensor in names} <= {stem for _, stem in known}


@pytest.mark.parametrize(("name", "weights"), [("olmoe-1b-7b", "q6_k"), ("gpt-oss-20b", "mxfp4")])
def test_values_are_as_large_as_trained_ones(name: str, weights: str, tmp_path: Path) -> None:
    """By gguf's own reader and decoder; a mixture's embeddings are larger, so that tokens choose independently."""
    sizes = {"vocab_size": 300, "expert_width": 256, "experts": 4, "chosen": 2, "layers": 1, "heads": 4, "kv_heads": 4}
    shape = replace(MIXTURES[name], **sizes, hidden_size=256, head_size=64)
    write_gguf(tmp_path / "x.gguf", shape, gguf, weights)
    read = gguf.GGUFReader(tmp_path / "x.gguf")
    found = {tensor.name: (tensor.tensor_type.name, tensor) for tensor in read.tensors}
    kind, experts = found["blk.0.ffn_down_exps.weight"]
    assert kind == weights.upper()
    assert list(experts.shape) == [256, 256, 4]
    for tensor, size in (("blk.0.attn_q", 0.02), ("blk.0.ffn_up_exps", 0.02), ("token_embd", 1.0)):
        _, stored = found[f"{tensor}.weight"]
        values = gguf.quants.dequantize(stored.data, stored.tensor_type)
        assert size / 4 < values.std() < 1.5 * size
    assert found["blk.0.attn_q.weight"][0] == ("Q8_0" if weights == "mxfp4" else "Q6_K")


def test_formats_whose_blocks_do_not_fit_are_refused() -> None:
    check_format(SHAPES["tinyllama-1.1b"], "q6_k")
    check_format(MIXTURES["gpt-oss-20b"], "mxfp4")
    with pytest.raises(MxspecError, match="q6_k: rows of 2880 are not whole blocks of 256 weights"):
        check_format(MIXTURES["gpt-oss-20b"], "q6_k")
