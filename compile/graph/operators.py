"""The operators of the native library as a graph names them: domain, names, inputs and outputs in their order.

A test compares this table with what the library registers (the *_op.h below runtime/ops say what each operator does).
"""

from __future__ import annotations

from dataclasses import dataclass

DOMAIN = "mxspec"
OPSET = 2  # the version of the domain that graphs import (runtime/ops/op.h)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator; an input whose name ends in ? may be left out."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("output",)

    @property
    def qualified(self) -> str:
        """The name in the form of torch's exporter."""
        return f"{DOMAIN}::{self.name}"

    @property
    def signature(self) -> str:
        """The signature in the library's form: `Name(input, optional?) -> (output)`."""
        return f"{self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)})"

    def slot(self, name: str) -> int:
        """The index of an input, by its name."""
        return [known.removesuffix("?") for known in self.inputs].index(name)


_CACHE = ("past_key", "past_value", "slots", "past_lengths", "new_lengths")
_SCORES = ("alibi_slopes?", "sinks?", "distance_bias?")
_PRESENT = ("output", "present_key", "present_value")

PACKED_MATMUL = Operator("PackedMatMul", ("A", "B", "bias?"))
PACKED_EXPERTS = Operator("PackedExperts", ("x", "chosen", "weights", "gate_up", "down", "gate_up_bias?", "down_bias?"))
PACKED_GATHER = Operator("PackedGather", ("ids", "B"))
ATTENTION = Operator("Attention", ("query", "key", "value", *_CACHE, *_SCORES), _PRESENT)
CROSS_ATTENTION = Operator("CrossAttention", ("query", *_CACHE[:3], "encoder_lengths", "new_lengths"))
ENCODER_ATTENTION = Operator("EncoderAttention", ("query", "key", "value", "new_lengths", "distance_bias?"))
STORE_KEY_VALUE = Operator("StoreKeyValue", ("key", "value", *_CACHE[:3], "new_lengths"), _PRESENT[1:])
QKV_ATTENTION = Operator(
    "QkvAttention", ("qkv", *_CACHE, "cos?", "sin?", "query_norm_weight?", "key_norm_weight?", *_SCORES), _PRESENT
)
ROTARY_EMBEDDING = Operator("RotaryEmbedding", ("x", "cos", "sin"))
ADD_RMS_NORM = Operator("AddRMSNorm", ("x", "residual", "weight"), ("norm", "sum"))
ADD_LAYER_NORM = Operator("AddLayerNorm", ("x", "residual", "weight", "bias"), ("norm", "sum"))
SWIGLU = Operator("SwiGLU", ("x",))
GEGLU = Operator("GeGLU", ("x",))

OPERATORS = (
    PACKED_MATMUL,
    PACKED_GATHER,
    PACKED_EXPERTS,
    ATTENTION,
    QKV_ATTENTION,
    CROSS_ATTENTION,
    ENCODER_ATTENTION,
    STORE_KEY_VALUE,
    ROTARY_EMBEDDING,
    ADD_RMS_NORM,
    ADD_LAYER_NORM,
    SWIGLU,
    GEGLU,
)
