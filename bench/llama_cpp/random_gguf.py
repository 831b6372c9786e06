"""A gguf file of a shape with random weights and no vocabulary, which the peer's own bench tool runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from llama_cpp.build import source_of
from mxspec.evaluate.bench.shapes.known import Shape
from mxspec.evaluate.bench.shapes.random_weights import random_halves

# One Q6_K block: 256 weights in 210 bytes (ggml-common.h, block_q6_K): 128 low and 64 high bits, 16 scales, an fp16.
Q6_K_WEIGHTS, Q6_K_BYTES = 256, 210


def random_q6_k(rng: np.random.Generator, n: int, k: int) -> np.ndarray[Any, Any]:
    """uint8[n, bytes]: valid Q6_K blocks of random values of the size that trained weights have."""
    blocks = rng.integers(0, 256, (n, k // Q6_K_WEIGHTS, Q6_K_BYTES), dtype=np.uint8)
    blocks[..., -2:] = np.frombuffer(np.float16(1e-5).tobytes(), dtype=np.uint8)
    return blocks.reshape(n, -1)


def write_gguf(path: Path, shape: Shape, gguf: Any, weights: str) -> None:
    """A llama-architecture gguf file of the given shape with random matrices in Q6_K or F16."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.hidden_size // shape.heads)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, n: int, k: int) -> None:
        if weights == "q6_k":
            writer.add_tensor(name, random_q6_k(rng, n, k), raw_dtype=gguf.GGMLQuantizationType.Q6_K)
        else:
            writer.add_tensor(name, random_halves((n, k), rng))

    hidden, inner = shape.hidden_size, shape.intermediate_size
    kv = hidden // shape.heads * shape.kv_heads
    matrix("token_embd.weight", shape.vocab_size, hidden)
    matrix("output.weight", shape.vocab_size, hidden)
    writer.add_tensor("output_norm.weight", np.ones(hidden, np.float32))
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{block}{norm}.weight", np.ones(hidden, np.float32))
        for name, n, k in (
            ("attn_q", hidden, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            matrix(f"{block}{name}.weight", n, k)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def peer_model(folder: Path, shape: Shape, weights: str) -> Path:
    path = folder / f"{shape.name}-{weights}.gguf"
    if not path.exists():
        sys.path.insert(0, str(source_of(folder) / "gguf-py"))
        import gguf

        partial = path.with_suffix(".new")
        write_gguf(partial, shape, gguf, weights)
        partial.rename(path)
    return path
