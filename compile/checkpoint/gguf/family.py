"""What a family of models is in a GGUF file: its settings, its tensors' names, and what its writer changed in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxspec.compile.checkpoint.settings.architecture import ONLY_PLAIN
from mxspec.formats.errors import CheckpointError, UnsupportedModelError
from mxspec.formats.validation import shorten

Settings = dict[str, Any]  # of a config.json
Vectors = Mapping[str, NDArray[np.float32]]  # factors of rotary embedding, which are settings elsewhere

FREQUENCIES, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (FREQUENCIES, LONG, SHORT)
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
ONE_ROW = ("ffn_gate_inp_shexp",)  # a matrix of one row, which some writers make a vector
_MISSING = object()
_NO_SETTINGS = ("rope.scaling.finetuned",)  # says whether training used the scaling; computing is the same


class GgufKeys:
    """The keys that begin with the architecture's name, which names here leave out; an unread key is refused."""

    def __init__(self, path: Path, keys: Mapping[str, Any], arch: str) -> None:
        self.path, self.arch = path, arch
        self._keys = {
            name.removeprefix(f"{arch}."): value for name, value in keys.items() if name.startswith(f"{arch}.")
        }
        self._read = set(_NO_SETTINGS)

    def __contains__(self, name: str) -> bool:
        return name in self._keys

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number from 0. Raises CheckpointError."""
        value = self._value(name, default)
        if type(value) is not int or value < 0:
            raise self._wrong(name, value, "a whole number from 0")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """A finite number: the shortest decimal that equals the file's float32. Raises CheckpointError."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not np.isfinite(value):
            raise self._wrong(name, value, "a finite number")
        return float(str(np.float32(value)))

    def text(self, name: str, default: str) -> str:
        """A text. Raises CheckpointError."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def require(self, name: str, expected: object) -> None:
        """Refuse another value of a key than the family's only one; the key may be missing."""
        value = self._value(name, expected)
        if type(value) is not type(expected) or value != expected:
            raise UnsupportedModelError(
                f"{self.path}: {self.arch}.{name}: got {shorten(value)}, expected {expected!r}: other values are not "
                "supported"
            )

    def check_all_read(self) -> None:
        """Raise UnsupportedModelError for a key that nothing read."""
        unread = sorted(self._keys.keys() - self._read)
        if any(name.startswith("expert") for name in unread):
            raise UnsupportedModelError(f"{self.path}: a mixture of experts ({self.arch}.{unread[0]}): {ONLY_PLAIN}")
        if unread:
            raise UnsupportedModelError(
                f"{self.path}: key {self.arch}.{unread[0]} is not known, and may change the model; "
                f"{len(unread)} such keys"
            )

    def _value(self, name: str, default: object) -> Any:
        self._read.add(name)
        value = self._keys.get(name, _MISSING)
        if value is _MISSING:
            if default is None:
                raise CheckpointError(f"{self.path}: key {self.arch}.{name} is missing")
            return default
        return value

    def _wrong(self, name: str, value: object, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {self.arch}.{name}: got {shorten(value)}, expected {expected}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What settings are made from: keys, the names of tensors, factors of rotation, the size of the vocabulary."""

    keys: GgufKeys
    tensors: frozenset[str]
    factors: Vectors
    vocab_size: int

    def biased(self, *modules: str) -> bool:
        """Whether one of these modules has a bias, by the file's names of the first layer."""
        return any(f"blk.0.{module}.bias" in self.tensors for module in modules)


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """An architecture of GGUF.

    `own` gives what the family's config has beside the sizes. `names` are leaves of a layer's tensors by the file's own
    names; the rows of those in `interleaved` are interleaved, by query heads or key heads. `shifted`: the file has the
    weight of a norm plus one. `factors` are the tensors of factors of rotation that a file may have. `head_dim`: a
    config names the size of a head.

    Of a mixture, `counted` is the setting with the number of experts; `alternating`: a checkpoint has rows of gate and
    up in turn, and biases of experts. `whole` are leaves that are no module's weight or bias.
    """

    model_type: str
    architecture: str
    own: Callable[[Facts, Settings], Settings]
    names: Mapping[str, str]
    interleaved: frozenset[str] = field(default=frozenset())
    shifted: bool = False
    factors: frozenset[str] = field(default=frozenset())
    head_dim: bool = True
    counted: str = ""
    alternating: bool = False
    whole: Mapping[str, str] = field(default_factory=dict)

    def settings(self, facts: Facts) -> Settings:
        """Those of a config.json. Raises UnsupportedModelError, CheckpointError."""
        if others := facts.factors.keys() - self.factors:
            raise UnsupportedModelError(
                f"{facts.keys.path}: tensor {min(others)!r} is not one of architecture {facts.keys.arch!r}"
            )
        sizes = decoder_sizes(facts)
        own = self.own(facts, sizes)
        if not self.head_dim:
            del sizes["head_dim"]
        return {"model_type": self.model_type, "architectures": [self.architecture], **sizes, **own}

    def name_of(self, tensor: str) -> str | None:
        """Name of a tensor in a checkpoint; None for one that the family does not have."""
        if tensor in OUTSIDE:
            return OUTSIDE[tensor]
        begin, _, rest = tensor.partition(".")
        layer, _, leaf = rest.partition(".")
        if begin == "blk" and layer.isdecimal() and leaf in self.whole:
            return f"model.layers.{int(layer)}.{self.whole[leaf]}"
        module, _, kind = leaf.rpartition(".")
        if module in EXPERTS and kind == "bias" and not self.alternating:
            return None
        if begin != "blk" or not layer.isdecimal() or kind not in ("weight", "bias") or module not in self.names:
            return None
        return f"model.layers.{int(layer)}.{self.names[module]}.{kind}"


OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
FEED_FORWARD = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
NORMS = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def decoder_sizes(facts: Facts) -> Settings:
    """The sizes that every family has."""
    keys = facts.keys
    hidden, heads = keys.count("embedding_length"), keys.count("attention.head_count")
    head = keys.count("attention.key_length", keys.count("rope.dimension_count", hidden // max(heads, 1)))
    keys.require("attention.value_length", head)
    keys.require("attention.causal", True)
    keys.require("vocab_size", facts.vocab_size)
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": keys.count("context_length"),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "vocab_size": facts.vocab_size,
        "tie_word_embeddings": "output.weight" not in facts.tensors,
    }


def rotation(facts: Facts, theta: float = 10000.0) -> Settings:
    """`rope_parameters` of a scaling that keys describe; `theta` where the file has none."""
    keys = facts.keys
    found: Settings = {
        "rope_type": keys.text("rope.scaling.type", "none"),
        "rope_theta": keys.real("rope.freq_base", theta),
    }
    if found["rope_type"] == "none":
        found["rope_type"] = "default"
    elif found["rope_type"] == "linear":
        found["factor"] = keys.real("rope.scaling.factor")
    elif found["rope_type"] == "yarn":
        found["factor"] = keys.real("rope.scaling.factor")
        found["original_max_position_embeddings"] = keys.count("rope.scaling.original_context_length")
        for name, key in (
            ("attention_factor", "yarn_attn_factor"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ):
            if f"rope.scaling.{key}" in keys:
                found[name] = keys.real(f"rope.scaling.{key}")
    else:
        raise UnsupportedModelError(
            f"{keys.path}: {keys.arch}.rope.scaling.type: got {found['rope_type']!r}, expected none, linear or yarn"
        )
    return found
