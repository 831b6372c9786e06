"""A gguf file of a shape with random weights and no vocabulary, which the peer's own bench tool runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.llama_cpp.build import source_of
from bench.shapes.known import MixtureShape, Shape
from bench.shapes.random_bundle import name_of
from bench.shapes.random_weights import (
    MIXTURE_EMBEDDING_SIZE,
    SCALE_BYTE,
    WEIGHT_SIZE,
    random_halves,
)
from mxspec.formats.errors import MxspecError

PEER_FORMATS = ("q6_k", "q8_0", "f16", "mxfp4")  # mxfp4: of experts, and Q8_0 for the rest, as gpt-oss is published
ARCHITECTURES = {"olmoe": "olmoe", "qwen3_moe": "qwen3moe", "gpt_oss": "gpt-oss"}  # by transformers' names
WINDOW, FACTOR, THETA, POSITIONS = 128, 32.0, 150000.0, 4096  # of gpt-oss: facts of its config.json

# Blocks of ggml-common.h: block_q6_K has 128 low and 64 high bits, 16 scales and an fp16; block_q8_0 an fp16 and 32
# integers; block_mxfp4 an E8M0 scale and 32 values of four bits.
BLOCKS = {"Q6_K": (256, 210), "Q8_0": (32, 34), "MXFP4": (32, 17)}  # weights and bytes of a block
Q6_K_SIZE = 1e-5 / 0.0137  # the fp16 of blocks of random bits, by the standard deviation of their values
Q8_0_SIZE = 1 / 74  # the same


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [n, k], or one for each of several experts; the values have a standard deviation of `size`."""

    name: str
    n: int
    k: int
    kind: str
    experts: int | None = None
    size: float = WEIGHT_SIZE

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.n, self.k) if self.experts is None else (self.experts, self.n, self.k)

    def values(self, rng: np.random.Generator) -> NDArray[Any]:
        """Random values: uint8[..., n, bytes] of blocks, or numbers."""
        if self.kind == "F32":
            return (rng.standard_normal(self.shape, np.float32) * self.size).astype(np.float32)
        return random_halves(self.shape, rng, self.size) if self.kind == "F16" else self._blocks(rng)

    def _blocks(self, rng: np.random.Generator) -> NDArray[np.uint8]:
        weights, size = BLOCKS[self.kind]
        blocks = rng.integers(0, 256, (*self.shape[:-1], self.k // weights, size), np.uint8)
        if self.kind == "Q6_K":
            blocks[..., -2:] = _half_bytes(self.size * Q6_K_SIZE)
        elif self.kind == "Q8_0":
            blocks[..., :2] = _half_bytes(self.size * Q8_0_SIZE)
        else:
            blocks[..., 0] = SCALE_BYTE
        return blocks.reshape(*self.shape[:-1], -1)


def _half_bytes(value: float) -> NDArray[np.uint8]:
    return np.frombuffer(np.float16(value).tobytes(), dtype=np.uint8)


def check_format(shape: Shape | MixtureShape, weights: str) -> None:
    """Raise MxspecError for a format of the peer's whose blocks do not fit into the rows of the shape's matrices."""
    block = BLOCKS.get(weights.upper(), (1, 0))[0]
    widths = {shape.hidden_size, shape.heads * shape.head_size}
    widths.add(shape.expert_width if isinstance(shape, MixtureShape) else shape.intermediate_size)
    if odd := sorted(width for width in widths if width % block):
        raise MxspecError(f"--peer-format {weights}: rows of {odd[0]} are not whole blocks of {block} weights")


def tensors_of(shape: Shape | MixtureShape, weights: str) -> Iterator[Matrix | str]:
    """The matrices and, by their names with sizes after a space, norms and other vectors of ones or zeros."""
    kind = {"mxfp4": "Q8_0"}.get(weights, weights.upper())
    hidden, rows = shape.hidden_size, shape.heads * shape.head_size
    cached = shape.kv_heads * shape.head_size
    mixture = shape if isinstance(shape, MixtureShape) else None
    embeddings = WEIGHT_SIZE if mixture is None else MIXTURE_EMBEDDING_SIZE
    yield Matrix("token_embd.weight", shape.vocab_size, hidden, kind, size=embeddings)
    yield Matrix("output.weight", shape.vocab_size, hidden, kind)
    yield f"output_norm.weight {hidden}"
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        yield f"{block}attn_norm.weight {hidden}"
        yield Matrix(f"{block}attn_q.weight", rows, hidden, kind)
        yield Matrix(f"{block}attn_k.weight", cached, hidden, kind)
        yield Matrix(f"{block}attn_v.weight", cached, hidden, kind)
        yield Matrix(f"{block}attn_output.weight", hidden, rows, kind)
        if mixture is None:
            assert isinstance(shape, Shape)
            yield f"{block}ffn_norm.weight {hidden}"
            yield Matrix(f"{block}ffn_gate.weight", shape.intermediate_size, hidden, kind)
            yield Matrix(f"{block}ffn_up.weight", shape.intermediate_size, hidden, kind)
            yield Matrix(f"{block}ffn_down.weight", hidden, shape.intermediate_size, kind)
        else:
            yield from _layer_of_experts(mixture, block, kind if weights != "mxfp4" else "MXFP4")


def _layer_of_experts(shape: MixtureShape, block: str, kind: str) -> Iterator[Matrix | str]:
    hidden, width, count = shape.hidden_size, shape.expert_width, shape.experts
    of_family = {
        "olmoe": {"attn_q_norm.weight": hidden, "attn_k_norm.weight": shape.kv_heads * shape.head_size},
        "qwen3_moe": {"attn_q_norm.weight": shape.head_size, "attn_k_norm.weight": shape.head_size},
        "gpt_oss": {
            "attn_sinks.weight": shape.heads,
            "attn_q.bias": shape.heads * shape.head_size,
            "attn_k.bias": shape.kv_heads * shape.head_size,
            "attn_v.bias": shape.kv_heads * shape.head_size,
            "attn_output.bias": hidden,
            "ffn_gate_inp.bias": count,
        },
    }
    yield from (f"{block}{name} {size}" for name, size in of_family[shape.model_type].items())
    norm = "post_attention_norm" if shape.model_type == "gpt_oss" else "ffn_norm"
    yield f"{block}{norm}.weight {hidden}"
    yield Matrix(f"{block}ffn_gate_inp.weight", count, hidden, "F32")
    for name, n, k in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
        yield Matrix(f"{block}ffn_{name}_exps.weight", n, k, kind, experts=count)
        if shape.model_type == "gpt_oss":
            yield Matrix(f"{block}ffn_{name}_exps.bias", count, n, "F32")


def write_gguf(path: Path, shape: Shape | MixtureShape, gguf: Any, weights: str) -> None:
    """A gguf file of the given shape with random matrices, one after another. `weights` is one of PEER_FORMATS."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, ARCHITECTURES[shape.model_type] if isinstance(shape, MixtureShape) else "llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context_length)
    writer.add_embedding_length(shape.hidden_size)
    inner = shape.expert_width if isinstance(shape, MixtureShape) else shape.intermediate_size
    writer.add_feed_forward_length(inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(shape.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    if isinstance(shape, MixtureShape):
        _add_experts(writer, gguf, shape)
    tensors = list(tensors_of(shape, weights))
    for tensor in tensors:
        if isinstance(tensor, str):
            name, size = tensor.split()
            writer.add_tensor_info(name, (int(size),), np.dtype(np.float32), 4 * int(size))
        elif tensor.kind in BLOCKS:
            in_block, block_bytes = BLOCKS[tensor.kind]
            stored = (*tensor.shape[:-1], tensor.k // in_block * block_bytes)
            kind = gguf.GGMLQuantizationType[tensor.kind]
            writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), int(np.prod(stored)), kind)
        else:
            dtype = np.dtype(np.float16 if tensor.kind == "F16" else np.float32)
            writer.add_tensor_info(tensor.name, tensor.shape, dtype, int(np.prod(tensor.shape)) * dtype.itemsize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        writer.write_tensor_data(_vector(tensor) if isinstance(tensor, str) else tensor.values(rng))
    writer.close()


def _add_experts(writer: Any, gguf: Any, shape: MixtureShape) -> None:
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.chosen)
    writer.add_expert_feed_forward_length(shape.expert_width)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    if shape.model_type == "gpt_oss":
        writer.add_sliding_window(WINDOW)
        writer.add_rope_freq_base(THETA)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(FACTOR)
        writer.add_rope_scaling_orig_ctx_len(POSITIONS)


def _vector(described: str) -> NDArray[np.float32]:
    """Ones for a norm, else zeros."""
    name, size = described.split()
    return np.full(int(size), float("norm" in name), np.float32)


def peer_model(folder: Path, shape: Shape | MixtureShape, weights: str) -> Path:
    path = folder / f"{name_of(shape)}-{weights}.gguf"
    if not path.exists():
        sys.path.insert(0, str(source_of(folder) / "gguf-py"))
        import gguf

        partial = path.with_suffix(".new")
        write_gguf(partial, shape, gguf, weights)
        partial.rename(path)
    return path
