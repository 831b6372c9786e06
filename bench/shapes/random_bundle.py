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
from transformers import GptOssConfig, LlamaConfig, OlmoeConfig, PreTrainedConfig, Qwen3MoeConfig, T5Config

from bench.shapes.known import (
    ALL_SHAPES,
    RANDOM,
    AnyShape,
    MixtureShape,
    SourceShape,
    draft_shape,
    source_draft_shape,
)
from bench.shapes.random_weights import (
    MIXTURE_EMBEDDING_SIZE,
    WEIGHT_SIZE,
    random_halves,
    random_tiles,
)
from mxspec.compile.graph.exported_graph import WeightSpec
from mxspec.compile.pipeline import add_model, versions
from mxspec.compile.planning.layout import format_name
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.compile.weights.pack import PackedWeights
from mxspec.compile.weights.write_model import WrittenModel, weights_name, write_graph
from mxspec.formats.bundle import BundleWriter
from mxspec.formats.manifest import TOKENIZER, Manifest, ModelEntry, ModelName, TensorEntry, TokenizerEntry
from mxspec.formats.safetensors_file import SafetensorsWriter
from mxspec.formats.weight_format import Activations
from mxspec.recipes.recipe import DraftRecipe, Recipe, TargetRecipe

DECODER_START = 0  # T5's, its padding token
EXPERTS = "*.mlp.experts.*"  # a pattern for the matrices of experts
PIECE_ROWS = 1024  # rows written at once: whole row tiles


def random_bundle(
    shape: AnyShape,
    folder: Path,
    target_format: str = "mxfp6_e3m2",
    k_max: int = 16,
    activations: Activations = "int16",
) -> Path:
    """The path of a bundle of the shape and a draft in `folder`; the bundle is made if it is missing.

    The draft has the size of the demo's draft or, with an encoder, of T5 1.1 small.
    """
    suffix = "" if activations == "int16" else f"-{activations}"
    path = folder / f"{name_of(shape)}-{target_format}{suffix}.bundle"
    if path.exists():
        return path
    draft = DraftRecipe(checkpoint=RANDOM)
    recipe = Recipe(
        name=shape.name,
        k_max=k_max,
        context_length=shape.context_length,
        prefill_chunk=512,
        source_length=shape.source_length if isinstance(shape, SourceShape) else None,
        target=TargetRecipe(
            checkpoint=RANDOM, format=target_format, activations=activations, formats=formats_of(shape)
        ),
        draft=draft,
    )
    small = source_draft_shape(shape) if isinstance(shape, SourceShape) else draft_shape(shape)
    shapes: dict[ModelName, AnyShape] = {"target": shape, "draft": small}
    wanted: dict[ModelName, TargetRecipe] = {"target": recipe.target, "draft": draft}
    with BundleWriter(path) as writer:
        entries = dict[ModelName, ModelEntry]()
        for name, of in shapes.items():
            plan = plan_without_weights(Model(name, config_of(of), wanted[name], recipe, of.context_length))
            entries[name] = add_model(write_random_model(plan, writer.folder), writer)
        write_tokenizer(writer.folder / TOKENIZER, shape.vocab_size)
        writer.add_file(TOKENIZER)
        tokenizer = TokenizerEntry(
            sha256=writer.files[TOKENIZER].sha256,
            vocab_size=shape.vocab_size,
            decoder_start=(DECODER_START,) if isinstance(shape, SourceShape) else (),
        )
        writer.publish(
            Manifest(
                name=recipe.name,
                k_max=recipe.k_max,
                recipe=recipe.as_dict(),
                models=entries,
                tokenizer=tokenizer,
                files=writer.files,
                versions=versions(),
            )
        )
    return path


def name_of(shape: AnyShape) -> str:
    """Its name, with the number of its layers where that is not the known shape's."""
    known = ALL_SHAPES.get(shape.name)
    return shape.name if known is None or known.layers == shape.layers else f"{shape.name}-{shape.layers}-layers"


def formats_of(shape: AnyShape) -> tuple[tuple[str, str], ...]:
    """Formats of single matrices: those of experts, where the shape has one for them."""
    own = shape.experts_format if isinstance(shape, MixtureShape) else None
    return () if own is None else ((EXPERTS, own),)


def config_of(shape: AnyShape) -> PreTrainedConfig:
    if isinstance(shape, MixtureShape):
        return _mixture_config(shape)
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


def _mixture_config(shape: MixtureShape) -> PreTrainedConfig:
    """The configuration of a mixture, whose published config.json has the settings that a shape does not name."""
    sizes: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "num_experts_per_tok": shape.chosen,
        "max_position_embeddings": shape.context_length,
        "tie_word_embeddings": False,
    }
    if shape.model_type == "olmoe":  # whose heads have the width of the hidden states by their number
        return OlmoeConfig(
            **sizes,
            intermediate_size=shape.expert_width,
            num_experts=shape.experts,
            architectures=["OlmoeForCausalLM"],
        )
    if shape.model_type == "qwen3_moe":
        return Qwen3MoeConfig(
            **sizes,
            head_dim=shape.head_size,
            moe_intermediate_size=shape.expert_width,
            num_experts=shape.experts,
            norm_topk_prob=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1e6},
            architectures=["Qwen3MoeForCausalLM"],
        )
    assert shape.model_type == "gpt_oss", shape.model_type
    lengths = GptOssConfig().max_position_embeddings  # which YaRN's factor goes with
    return GptOssConfig(
        **sizes | {"max_position_embeddings": lengths},
        head_dim=shape.head_size,
        intermediate_size=shape.expert_width,
        num_local_experts=shape.experts,
        layer_types=["full_attention" if layer % 2 else "sliding_attention" for layer in range(shape.layers)],
        architectures=["GptOssForCausalLM"],
    )


def write_random_model(plan: ModelPlan, folder: Path) -> WrittenModel:
    rng = np.random.default_rng(0)
    embedding_size = WEIGHT_SIZE if plan.exported.experts is None else MIXTURE_EMBEDDING_SIZE
    entries = []
    with SafetensorsWriter(folder / weights_name(plan.name), plan.layout) as writer:
        for spec in plan.exported.weights:
            writer.begin(spec.name)
            for piece in random_pieces(spec, rng, embedding_size):
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


def random_pieces(spec: WeightSpec, rng: np.random.Generator, embedding_size: float) -> Iterator[NDArray[Any]]:
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
        if spec.kind != "float32":
            yield random_halves(shape, rng, embedding_size)
        elif spec.name.endswith("bias"):
            yield random_halves(shape, rng).astype(np.float32)
        else:  # norms
            yield np.ones(shape, np.float32)


def write_tokenizer(path: Path, vocab_size: int) -> None:
    """Write a tokenizer with a word for each token; nobody reads the texts of random weights."""
    tokenizer = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(vocab_size)}, unk_token="<0>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path))
