"""A checkpoint that computes what a small one computes, at the cost of a model of a real size.

Random weights have the speed of trained ones but agree with no draft: what speculation gains on them has to be imposed.
Here the agreement is real. The grown model repeats the small one's residual stream, adds heads, neurons and layers of
random weights whose outputs are multiplied by zeros, and reads the first copy of the stream alone:

- the mean square of the stream, which is all that a norm takes of its width, stays as it was;
- what writes to the stream has its rows repeated, what reads it has zeros after the columns of the first copy;
- a query keeps its head of keys and values, which is copied where the new model has fewer queries for each.

So its logits differ from the small one's by the rounding of one longer sum, and MX blocks hold the same values, so that
rounding costs the same. Head size, vocabulary and context stay. A vocabulary smaller than the shape's is made up for by
layers of as many weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers import LlamaConfig

from bench.shapes.known import Shape
from bench.shapes.random_weights import random_halves
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.tensors.tensor import as_float32
from mxspec.evaluate.options import Progress, silent
from mxspec.formats.errors import MxspecError
from mxspec.formats.folder_writer import FolderWriter
from mxspec.formats.manifest import TOKENIZER

INDEX = "model.safetensors.index.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
NOISE_VALUES = 1 << 20  # all random weights of a grown model are pieces of these values
Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a Llama; all heads have `head_size`."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of one layer."""
        return self.hidden * (2 * self.head_size * (self.heads + self.kv_heads) + 3 * self.inner)

    @property
    def read_weights(self) -> int:
        """Weights of the matrices that a step reads."""
        return self.layers * self.layer_weights + self.vocab * self.hidden


def sizes_of(config: LlamaConfig) -> Sizes:
    return Sizes(
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        vocab=config.vocab_size,
    )


def grown_sizes(small: Sizes, shape: Shape) -> Sizes:
    """The shape with the small model's head size and vocabulary. Raises MxspecError where it does not fit."""
    wide = small.head_size
    layer = Sizes(
        hidden=shape.hidden_size,
        inner=shape.intermediate_size,
        layers=1,
        heads=shape.heads * shape.head_size // wide,
        kv_heads=shape.kv_heads * shape.head_size // wide,
        head_size=wide,
        vocab=small.vocab,
    )
    for_head = round((shape.vocab_size - small.vocab) * shape.hidden_size / layer.layer_weights)
    large = replace(layer, layers=shape.layers + max(for_head, 0))
    if large.hidden % small.hidden:
        raise MxspecError(
            f"--to {shape.name}: its width of {large.hidden} is not a multiple of the checkpoint's {small.hidden}"
        )
    needed = small.kv_heads * -(-per_head(small) // per_head(large))
    for what, have, need in (
        ("layers", large.layers, small.layers),
        ("neurons", large.inner, small.inner),
        ("heads of keys and values", large.kv_heads, needed),
    ):
        if have < need:
            raise MxspecError(
                f"--to {shape.name}: has {have:,} {what}, the checkpoint needs {need:,}: name a larger shape"
            )
    return large


def per_head(sizes: Sizes) -> int:
    """Queries that share a head of keys and values."""
    return sizes.heads // sizes.kv_heads


@dataclass(frozen=True, slots=True)
class Places:
    """For each head of the grown model, the index of the small model's head that it copies."""

    queries: dict[int, int]
    keys: dict[int, int]

    @classmethod
    def of(cls, small: Sizes, large: Sizes) -> Places:
        """Each head of keys and values with as many of its queries as share one in the grown model, then a copy."""
        queries: dict[int, int] = {}
        keys: dict[int, int] = {}
        for head in range(small.kv_heads):
            first, last = head * per_head(small), (head + 1) * per_head(small)
            for begin in range(first, last, per_head(large)):
                at = len(keys)
                keys[at] = head
                for i, query in enumerate(range(begin, min(begin + per_head(large), last))):
                    queries[at * per_head(large) + i] = query
        return cls(queries, keys)


class Noise:
    """Any number of random weights, made cheaply."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._values = random_halves((NOISE_VALUES,), self._rng)

    def matrix(self, rows: int, columns: int) -> Halves:
        """float16[rows, columns], a copy that the caller may change."""
        begin = int(self._rng.integers(NOISE_VALUES))
        return np.resize(np.roll(self._values, begin), (rows, columns))


class Grower:
    """The tensors of the grown model, one after another."""

    def __init__(self, checkpoint: Checkpoint, large: Sizes) -> None:
        self._checkpoint = checkpoint
        self.small, self.large = sizes_of(checkpoint.config), large
        self._places = Places.of(self.small, large)
        self._noise = Noise()

    def parts(self) -> Iterator[tuple[str, dict[str, Halves]]]:
        """The files of the checkpoint: the tables and the last norm, and each layer."""
        table = self._read("model.embed_tokens.weight")
        head = table if self._checkpoint.config.tie_word_embeddings else self._read("lm_head.weight")
        yield (
            "ends.safetensors",
            {
                "model.embed_tokens.weight": np.tile(table, (1, self.large.hidden // self.small.hidden)),
                "lm_head.weight": self._reading(head),
                "model.norm.weight": self._repeated(self._read("model.norm.weight")),
            },
        )
        for number in range(self.large.layers):
            layer = self._copied(number) if number < self.small.layers else self._idle()
            yield (
                f"layer-{number}.safetensors",
                {f"model.layers.{number}.{name}": value for name, value in layer.items()},
            )

    def _copied(self, number: int) -> dict[str, Halves]:
        """A layer that computes what the small model's layer computes."""
        layer = self._idle()
        found = {name: self._read(f"model.layers.{number}.{name}") for name in layer}
        for name in ("q_proj", "k_proj", "v_proj"):
            places = self._places.queries if name == "q_proj" else self._places.keys
            into = self._by_head(layer[f"self_attn.{name}.weight"])
            values = self._by_head(self._reading(found[f"self_attn.{name}.weight"]))
            for at, head in places.items():
                into[at] = values[head]
        out = self._by_head(self._repeated(found["self_attn.o_proj.weight"]).T)
        into = self._by_head(layer["self_attn.o_proj.weight"].T)
        for at, head in self._places.queries.items():
            into[at] = out[head]
        inner = self.small.inner
        for name in ("mlp.gate_proj.weight", "mlp.up_proj.weight"):
            layer[name][:inner] = self._reading(found[name])
        layer["mlp.down_proj.weight"][:, :inner] = self._repeated(found["mlp.down_proj.weight"])
        for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
            layer[name] = self._repeated(found[name])
        return layer

    def _idle(self) -> dict[str, Halves]:
        """A layer of random weights that adds zeros to the stream."""
        sizes = self.large
        queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
        return {
            "self_attn.q_proj.weight": self._noise.matrix(queries, sizes.hidden),
            "self_attn.k_proj.weight": self._noise.matrix(keys, sizes.hidden),
            "self_attn.v_proj.weight": self._noise.matrix(keys, sizes.hidden),
            "self_attn.o_proj.weight": np.zeros((sizes.hidden, queries), np.float16),
            "mlp.gate_proj.weight": self._noise.matrix(sizes.inner, sizes.hidden),
            "mlp.up_proj.weight": self._noise.matrix(sizes.inner, sizes.hidden),
            "mlp.down_proj.weight": np.zeros((sizes.hidden, sizes.inner), np.float16),
            "input_layernorm.weight": np.ones(sizes.hidden, np.float16),
            "post_attention_layernorm.weight": np.ones(sizes.hidden, np.float16),
        }

    def _by_head(self, matrix: Halves) -> Halves:
        """A view [heads, head_size, columns] of a matrix whose rows are those of heads."""
        return matrix.reshape(-1, self.small.head_size, matrix.shape[1])

    def _repeated(self, values: Halves) -> Halves:
        """Repeat the rows of a matrix that writes to the stream, so that it writes to every copy."""
        return np.concatenate([values] * (self.large.hidden // self.small.hidden))

    def _reading(self, values: Halves) -> Halves:
        """Add zero columns to a matrix that reads the stream, so that it reads only the first copy."""
        return np.pad(values, ((0, 0), (0, self.large.hidden - self.small.hidden)))

    def _read(self, name: str) -> Halves:
        tensor = self._checkpoint.tensors.get(name)
        if tensor is None:
            raise MxspecError(f"{self._checkpoint.folder}: no tensor {name!r}")
        values = as_float32(tensor.read_rows(0, tensor.shape[0]), tensor.dtype).astype(np.float16)
        if not np.isfinite(values).all():
            raise MxspecError(f"{self._checkpoint.folder}: {name!r} holds values that float16 does not")
        return values


def check_growable(checkpoint: Checkpoint) -> LlamaConfig:
    """The configuration of a plain Llama. Raises MxspecError for anything else."""
    config = checkpoint.config
    if not isinstance(config, LlamaConfig) or config.attention_bias or config.mlp_bias:
        raise MxspecError(
            f"{checkpoint.folder}: is a {config.model_type}, expected a llama without biases: others cannot be grown"
        )
    return config


def grow(source: Path, shape: Shape, place: Path, force: bool = False, progress: Progress = silent) -> Sizes:
    """Write the grown checkpoint to the folder `place`, a layer at a time; nothing where it raises MxspecError."""
    with ExitStack() as files:
        checkpoint = files.enter_context(Checkpoint(source))
        config = check_growable(checkpoint)
        large = grown_sizes(sizes_of(config), shape)
        writer = files.enter_context(
            FolderWriter(place, kind="checkpoint", check_replaceable=check_replaceable, force=force)
        )
        writer.require_space(2 * (large.read_weights + large.vocab * large.hidden))
        places: dict[str, str] = {}
        for name, tensors in Grower(checkpoint, large).parts():
            progress(f"writing {name} of {large.layers} layers")
            save_file(tensors, writer.folder / name)
            places |= dict.fromkeys(tensors, name)
        shutil.copyfile(checkpoint.tokenizer, writer.folder / TOKENIZER)
        if (source / TOKENIZER_CONFIG).is_file():
            shutil.copyfile(source / TOKENIZER_CONFIG, writer.folder / TOKENIZER_CONFIG)
        (writer.folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
        writer.publish_with(CONFIG, json.dumps(grown_settings(config, large), indent=2))
    return large


def grown_settings(config: LlamaConfig, large: Sizes) -> dict[str, Any]:
    """The small model's configuration with the large one's sizes, and tables of their own."""
    settings: dict[str, Any] = config.to_dict()
    return settings | {
        "hidden_size": large.hidden,
        "intermediate_size": large.inner,
        "num_hidden_layers": large.layers,
        "num_attention_heads": large.heads,
        "num_key_value_heads": large.kv_heads,
        "tie_word_embeddings": False,
        "dtype": "float16",
    }


def check_replaceable(place: Path) -> None:
    """Raise MxspecError unless `place` is a grown checkpoint."""
    if not (place / CONFIG).is_file() or not (place / INDEX).is_file():
        raise MxspecError(f"{place} is not a grown checkpoint; choose another place with -o")
