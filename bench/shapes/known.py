"""The shapes of well-known models, to measure speed without a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

RANDOM = "random"  # the checkpoint in the recipe of a bundle of random weights


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-architecture model without its weights."""

    name: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int
    context_length: int = 2048

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads


# From the models' own config.json files.
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("smollm2-135m", 576, 1536, layers=30, heads=9, kv_heads=3, vocab_size=49152),
        Shape("qwen2.5-0.5b", 896, 4864, layers=24, heads=14, kv_heads=2, vocab_size=151936),
        Shape("tinyllama-1.1b", 2048, 5632, layers=22, heads=32, kv_heads=4, vocab_size=32000),
        Shape("llama-3.2-3b", 3072, 8192, layers=28, heads=24, kv_heads=8, vocab_size=128256),
        Shape("llama-2-7b", 4096, 11008, layers=32, heads=32, kv_heads=32, vocab_size=32000),
        Shape("llama-2-13b", 5120, 13824, layers=40, heads=40, kv_heads=40, vocab_size=32000),
    )
}


@dataclass(frozen=True, slots=True)
class SourceShape:
    """A T5 1.1 without its weights: `layers` in the encoder, and as many in the decoder."""

    name: str
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    head_size: int = 64
    vocab_size: int = 32128
    context_length: int = 512
    source_length: int = 512


# From the models' own config.json files.
SOURCE_SHAPES = {
    shape.name: shape
    for shape in (
        SourceShape("t5-1.1-large", 1024, 2816, layers=24, heads=16),
        SourceShape("t5-1.1-xl", 2048, 5120, layers=24, heads=32),
    )
}


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """A mixture of experts without its weights, of the family that transformers calls `model_type`.

    Each token chooses `chosen` of a layer's `experts`, each `expert_width` wide. The matrices of experts are in
    `experts_format` where that is given, the format of the model's published weights.
    """

    name: str
    model_type: str
    hidden_size: int
    expert_width: int
    experts: int
    chosen: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocab_size: int
    context_length: int = 2048
    experts_format: str | None = None


# From the models' own config.json files.
MIXTURES = {
    shape.name: shape
    for shape in (
        MixtureShape(
            "olmoe-1b-7b", "olmoe", 2048, 1024, experts=64, chosen=8, layers=16, heads=16, kv_heads=16, head_size=128,
            vocab_size=50304,
        ),
        MixtureShape(
            "qwen3-30b-a3b", "qwen3_moe", 2048, 768, experts=128, chosen=8, layers=48, heads=32, kv_heads=4,
            head_size=128, vocab_size=151936,
        ),
        MixtureShape(
            "gpt-oss-20b", "gpt_oss", 2880, 2880, experts=32, chosen=4, layers=24, heads=64, kv_heads=8, head_size=64,
            vocab_size=201088, experts_format="mxfp4_e2m1",
        ),
    )
}  # fmt: skip

AnyDecoder = Shape | MixtureShape
DECODERS: dict[str, AnyDecoder] = {**SHAPES, **MIXTURES}

AnyShape = Shape | SourceShape | MixtureShape
ALL_SHAPES: dict[str, AnyShape] = {**SHAPES, **SOURCE_SHAPES, **MIXTURES}

# Sizes to grow the demo pair to: the draft costs what users' drafts cost (a step reads 68 million weights), and the
# target compiles within a minute on a small machine.
DRAFT_SHAPE = Shape("draft-68m", 1024, 4352, layers=4, heads=16, kv_heads=4, vocab_size=4096)
DEMO_SHAPE = Shape("demo-250m", 1024, 4096, layers=16, heads=16, kv_heads=4, vocab_size=4096)
GROWN = SHAPES | {shape.name: shape for shape in (DRAFT_SHAPE, DEMO_SHAPE)}


def source_draft_shape(target: SourceShape) -> SourceShape:
    """T5 1.1 small, with the lengths of the target."""
    sizes = {"layers": 8, "heads": 6, "vocab_size": target.vocab_size}
    lengths = {"context_length": target.context_length, "source_length": target.source_length}
    return SourceShape("t5-1.1-small", 512, 1024, **sizes, **lengths)


def draft_shape(target: Shape | MixtureShape) -> Shape:
    """The demo's draft with the target's vocabulary."""
    return Shape("demo-draft", 128, 384, layers=2, heads=4, kv_heads=2, vocab_size=target.vocab_size)
