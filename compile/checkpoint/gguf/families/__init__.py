"""The architectures that can be read from GGUF files, by the names that files give them."""

from __future__ import annotations

from mxspec.compile.checkpoint.gguf.families.family import Family
from mxspec.compile.checkpoint.gguf.families.gemma import GEMMA2, GEMMA3
from mxspec.compile.checkpoint.gguf.families.llama import GRANITE, LLAMA, QWEN2, QWEN3, SMOLLM3
from mxspec.compile.checkpoint.gguf.families.mixtures import GPT_OSS, GRANITE_MOE, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE
from mxspec.compile.checkpoint.gguf.families.phi3 import PHI3

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "phi3": PHI3,
    "olmoe": OLMOE,
    "qwen2moe": QWEN2_MOE,
    "qwen3moe": QWEN3_MOE,
    "granitemoe": GRANITE_MOE,
    "gpt-oss": GPT_OSS,
}
MIXTURES: dict[str, Family] = {"llama": MIXTRAL}  # where a file of an architecture has experts
