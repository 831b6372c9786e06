"""Bundles with random weights, to measure the speed of a shape without its checkpoint.

The graph is exported from a configuration as for a real model; the packed bytes are drawn at random. Every byte is read
and decoded as a trained one would be, so the speed is that of the shape. The texts are noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, PreTrainedConfig, T5Config

from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.planning.layout import format_name
from mxspec.compile.planning.plan import ModelPlan, plan_without_weights
from mxspec.compile.publish import Publication
from mxspec.compile.weights.pack import PackedWeights
from mxspec.compile.weights.write_model import WrittenModel, weights_name, write_graph
from mxspec.evaluate.bench.shapes.kept import RANDOM
from mxspec.evaluate.bench.shapes.known import Shape, SourceShape, draft_shape, source_draft_shape
from mxspec.evaluate.bench.shapes.random_weights import random_halves, random_tiles
from mxspec.formats.bundle_writer import BundleWriter
from mxspec.formats.manifest import TOKENIZER, ModelName, TensorEntry, TokenizerEntry
from mxspec.formats.safetensors_file import SafetensorsWriter
from mxspec.formats.weight_format import Activations
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe

DECODER_START = 0  # T5's, its padding token
PIECE_ROWS = 1024  # rows written at once: whole row tiles


def random_bundle(
    shape: Shape | SourceShape,
    folder: Path,
    target_format: str = "mxfp6_e3m2",
    k_max: int = 16,
    activations: Activations = "int16",
) -> Path:
    """The path of a bundle of the shape and a draft in `folder`; the bundle is made if it is missing.

    The draft has the size of the demo's draft or, with an encoder, of T5 1.1 small.
    """
    suffix = "" if activations == "int16" else f"-{activations}"
    path = folder / f"{shape.name}-{target_format}{suffix}.bundle"
    if path.exists():
        return path
    draft = DraftRecipe(checkpoint=RANDOM)
    recipe = Recipe(
        name=shape.name,
        k_max=k_max,
        context_length=shape.context_length,
        prefill_chunk=512,
        source_length=shape.source_length if isinstance(shape, SourceShape) else None,
        target=TargetRecipe(checkpoint=RANDOM, format=target_format, activations=activations),
        draft=draft,
    )
    small = source_draft_shape(shape) if isinstance(shape, SourceShape) else draft_shape(shape)
    shapes: dict[ModelName, Shape | SourceShape] = {"target": shape, "draft": small}
    wanted: dict[ModelName, TargetRecipe] = {"target": recipe.target, "draft": draft}
    with BundleWriter(path) as writer:
        made = Publication(writer)
        for name, of in shapes.items():
            plan = plan_without_weights(name, config_of(of), wanted[name], recipe, of.context_length)
            made.add_model(name, write_random_model(plan, writer.folder))
        write_tokenizer(writer.folder / TOKENIZER, shape.vocab_size)
        made.add_file(TOKENIZER)
        tokenizer = TokenizerEntry(
            sha256=made.contents[TOKENIZER].sha256,
            vocab_size=shape.vocab_size,
            decoder_start=(DECODER_START,) if isinstance(shape, SourceShape) else (),
        )
        writer.publish(made.manifest(recipe, tokenizer))
    return path


def config_of(shape: Shape | SourceShape) -> PreTrainedConfig:
    if isinstance(shape, SourceShape):
        return T5Config(
            vocab_size=shape.vocab_size,
            d_model=shape.hidden_size,
            d_ff=shape.intermediate_size,
            d_kv=shape.head_size,
            num_layers=shape.layers,
            num_decoder_layers=shape.layers,
            num_heads=shape.heads,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            decoder_start_token_id=DECODER_START,
            architectures=["T5ForConditionalGeneration"],
        )
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context_length,
        architectures=["LlamaForCausalLM"],
    )


def write_random_model(plan: ModelPlan, folder: Path) -> WrittenModel:
    rng = np.random.default_rng(0)
    entries = []
    with SafetensorsWriter(folder / weights_name(plan), plan.layout) as writer:
        for spec in plan.exported.weights:
            writer.begin(spec.name)
            for piece in random_pieces(spec, rng):
                writer.append(piece.tobytes())
            entries.append(
                TensorEntry(
                    name=spec.name,
                    sources=spec.sources,
                    format=format_name(spec),
                    shape=spec.shape,
                    offset=plan.layout.offsets[spec.name],
                    bytes=spec.stored_bytes,
                    source_bytes=0,
                )
            )
        packed = PackedWeights(tuple(entries), writer.finish())
    return write_graph(plan, folder, packed)


def random_pieces(spec: WeightSpec, rng: np.random.Generator) -> Iterator[NDArray[Any]]:
    """The stored values of one weight, some rows at a time."""
    if spec.value is not None:
        yield np.ascontiguousarray(spec.value)
        return
    if spec.kind == "matmul":
        n, k = spec.shape
        for first in range(0, n, PIECE_ROWS):
            yield random_tiles(spec.format, min(PIECE_ROWS, n - first), k, rng)
        return
    rows, *width = spec.stored_shape
    for first in range(0, rows, PIECE_ROWS):
        shape = (min(PIECE_ROWS, rows - first), *width)
        yield np.ones(shape, np.float32) if spec.kind == "float32" else random_halves(shape, rng)  # norms are ones


def write_tokenizer(path: Path, vocab_size: int) -> None:
    """Write a tokenizer with a word for each token; nobody reads the texts of random weights."""
    tokenizer = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(vocab_size)}, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
