"""What a compile fetches, makes and takes: the plan of each model, made from configurations alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedConfig

from mxspec.compile.checkpoint.names import name_parameters
from mxspec.compile.checkpoint.open_checkpoint import read_config
from mxspec.compile.checkpoint.settings.config import make_config, read_settings
from mxspec.compile.heads.mtp import MtpConfig, mtp_settings
from mxspec.compile.planning.context import choose_contexts
from mxspec.compile.planning.formats import formats_by_config
from mxspec.compile.planning.model import Model, ModelPlan
from mxspec.compile.planning.plan import plan_without_weights
from mxspec.formats.caches import cache_bytes, kept_tokens
from mxspec.formats.manifest import ExpertsEntry, ModelName, call_tokens
from mxspec.formats.weight_format import WEIGHT_FORMATS
from mxspec.recipes.find_recipe import shipped_config
from mxspec.recipes.recipe import Recipe, TargetRecipe, is_mtp

# Measured for a 7B target on two cores (bench/records/compile_7b.json): 4.5 s for the referee, 16 s of export for 32
# layers, 460 million weights packed a second, 10 s of checks.
REFEREE_SECONDS = 4.5
EXPORT_SECONDS_A_LAYER = 16.3 / 32
PACK_SECONDS_A_WEIGHT = 1 / 460e6
CHECK_SECONDS_A_WEIGHT = 10.4 / 6.738e9


@dataclass(frozen=True, slots=True)
class Outline:
    """A model by its configuration: its plan, its number of weights, and the bytes of its safetensors files.

    `fetch_bytes` follow from the configuration's dtype (16 bits if it has none), and are 0 for an existing folder.
    """

    wanted: TargetRecipe
    config: PreTrainedConfig
    plan: ModelPlan
    weights: int
    fetch_bytes: int

    @property
    def matrices(self) -> frozenset[str]:
        """The parameters that are packed."""
        packed = (spec for spec in self.plan.exported.weights if spec.kind == "matmul")
        return frozenset(source for spec in packed for source in spec.sources)

    @property
    def experts(self) -> ExpertsEntry | None:
        """The experts of a mixture."""
        return self.plan.exported.experts

    @property
    def file_bytes(self) -> int:
        """Bytes of its weights file; an MTP layer borrows the target's embedding."""
        lent = [spec for spec in self.plan.exported.weights if spec.kind == "embedding"]
        borrowed = sum(2 * math.prod(spec.shape) for spec in lent) if isinstance(self.config, MtpConfig) else 0
        return self.plan.layout.file_bytes - borrowed

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values of all layers, for a text of full length and its source."""
        return self._cache_bytes(self.plan.exported.windows)

    @property
    def whole_cache_bytes(self) -> int:
        """The same if no layer had a window."""
        return self._cache_bytes([0] * self.plan.exported.layers)

    def _cache_bytes(self, windows: Sequence[int]) -> int:
        exported, call = self.plan.exported, call_tokens(self.plan.specializations)
        kept = kept_tokens(windows, exported.context_length, exported.context_length, call)
        read = 0 if exported.encoder is None else exported.encoder.context_length * exported.layers
        return cache_bytes(exported.caches, exported.kv_heads, exported.head_size, kept + read)

    def read_bytes(self, tokens: int) -> int:
        """Bytes of the matrices that a call reads for `tokens` tokens: of experts, the chosen ones."""
        sizes = {spec.name: spec.stored_bytes for spec in self.plan.exported.weights if spec.kind == "matmul"}
        if self.experts is None:
            return sum(sizes.values())
        unread = 1 - self.experts.read_share(tokens)
        return round(sum(sizes.values()) - unread * sum(sizes[name] for name in self.experts.tensors))

    @property
    def matrix_bytes(self) -> int:
        """Bytes of all packed matrices."""
        return sum(spec.stored_bytes for spec in self.plan.exported.weights if spec.kind == "matmul")

    @property
    def seconds(self) -> float:
        """About how long compiling it takes on two cores."""
        exported = self.plan.exported
        layers = exported.layers + (0 if exported.encoder is None else exported.encoder.layers)
        of_weights = self.weights * (PACK_SECONDS_A_WEIGHT + CHECK_SECONDS_A_WEIGHT)
        return REFEREE_SECONDS + EXPORT_SECONDS_A_LAYER * layers + of_weights


def read_configs(recipe: Recipe) -> dict[ModelName, PreTrainedConfig]:
    """The configuration of each model: from its folder, shipped with mxspec, or else from the hub.

    Raises MxspecError if none is found.
    """
    configs: dict[ModelName, PreTrainedConfig] = {"target": _read_config(recipe, recipe.target)}
    return configs if recipe.draft is None else {**configs, "draft": _read_config(recipe, recipe.draft)}


def _read_config(recipe: Recipe, model: TargetRecipe) -> PreTrainedConfig:
    source = recipe.source_of(model)
    shipped = shipped_config(source.checkpoint)
    if shipped is None or recipe.has_folder(source.checkpoint):
        return read_config(recipe, model)
    settings = read_settings(shipped)
    return make_config(mtp_settings(settings, str(shipped)) if is_mtp(model) else settings, str(shipped))


def outline_models(recipe: Recipe, configs: dict[ModelName, PreTrainedConfig]) -> list[Outline]:
    """The outline of each model. Raises MxspecError for a model that cannot be compiled."""
    contexts = choose_contexts(recipe, configs)
    return [_outline(name, config, recipe, contexts[name]) for name, config in configs.items()]


def _outline(name: ModelName, config: PreTrainedConfig, recipe: Recipe, context_length: int) -> Outline:
    wanted = recipe.draft if name == "draft" and recipe.draft is not None else recipe.target
    weights, fetched = count_weights(config)
    here = recipe.has_folder(recipe.source_of(wanted).checkpoint)
    plan = plan_without_weights(Model(name, config, wanted, recipe, context_length))
    return Outline(wanted, config, plan, weights, 0 if here else fetched)


def count_weights(config: PreTrainedConfig) -> tuple[int, int]:
    """The number of a model's weights, and their bytes in the checkpoint: those that are MX there in their formats."""
    named = name_parameters(config)
    own, width = formats_by_config(named, config), 4 if "float32" in str(config.dtype) else 2
    sizes = {name: parameter.numel() for name, parameter in named.named_parameters()}
    in_blocks = sum(WEIGHT_FORMATS[kind].bits_a_weight * sizes[name] / 8 for name, kind in own.items())
    stored = int(in_blocks + width * sum(size for name, size in sizes.items() if name not in own))
    if isinstance(config, MtpConfig):  # whose tables are the target's
        stored -= 2 * width * config.vocab_size * config.hidden_size
    return sum(parameter.numel() for parameter in named.parameters()), stored
