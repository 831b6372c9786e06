"""Forecast a compile from configurations alone: no graph is made, no weight is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from mxspec.compile.checkpoint.experts import chosen_experts, expert_matrices, router_matrices
from mxspec.compile.checkpoint.names import is_computed, name_parameters
from mxspec.compile.checkpoint.open_checkpoint import read_config
from mxspec.compile.checkpoint.settings.architecture import decoder_heads, decoder_layers, head_size, layer_windows
from mxspec.compile.checkpoint.settings.config import make_config, read_settings
from mxspec.compile.heads.mtp import MtpConfig, mtp_settings
from mxspec.compile.planning.context import choose_contexts, source_length
from mxspec.compile.planning.formats import choose_formats, choose_tables, formats_by_config, main_format
from mxspec.formats.caches import cache_bytes, kept_tokens
from mxspec.formats.manifest import ExpertsEntry, ModelName, call_tokens
from mxspec.formats.weight_format import FP16_TILES, WEIGHT_FORMATS, packed_shape
from mxspec.recipes.find_recipe import shipped_config
from mxspec.recipes.recipe import Recipe, TargetRecipe, is_mtp, kept_rows

# Measured for a 7B target on two cores (bench/records/compile_7b.json): 4.5 s for the referee, 16 s of export for 32
# layers, 460 million weights packed a second, 10 s of checks.
REFEREE_SECONDS = 4.5
EXPORT_SECONDS_A_LAYER = 16.3 / 32
PACK_SECONDS_A_WEIGHT = 1 / 460e6
CHECK_SECONDS_A_WEIGHT = 10.4 / 6.738e9


@dataclass(frozen=True, slots=True)
class ModelForecast:
    """One model: weights in its checkpoint, bytes of its weights file, and bytes of one text's cache at full length.

    `whole_cache_bytes` are those that the cache would have if no layer had a window.
    `fetch_bytes` is the size of the safetensors files by the configuration's dtype (16 bits if it has none), and 0 for
    an existing folder. `matrices` names the parameters that will be packed. A call reads all `matrix_bytes` but those
    of the `experts` that no token chooses, which are `expert_bytes` together.
    """

    name: ModelName
    checkpoint: str
    architecture: str
    format: str
    weights: int
    fetch_bytes: int
    file_bytes: int
    cache_bytes: int
    whole_cache_bytes: int
    context_length: int
    matrices: frozenset[str]
    matrix_bytes: int
    seconds: float
    experts: ExpertsEntry | None = None
    expert_bytes: int = 0

    def read_bytes(self, tokens: int) -> int:
        """Bytes of the matrices that a call of a mixture of experts reads for `tokens` tokens."""
        share = 1.0 if self.experts is None else self.experts.read_share(tokens)
        return round(self.matrix_bytes - (1 - share) * self.expert_bytes)


def read_configs(recipe: Recipe) -> dict[ModelName, PreTrainedConfig]:
    """The configuration of each model: from its folder, shipped with mxspec, or else from the hub.

    Raises MxspecError if none is found.
    """
    return {name: _read_config(recipe, model) for name, model in models_of(recipe).items()}


def models_of(recipe: Recipe) -> dict[ModelName, TargetRecipe]:
    """The target, and the draft if the recipe has one."""
    models: dict[ModelName, TargetRecipe] = {"target": recipe.target}
    return models if recipe.draft is None else {**models, "draft": recipe.draft}


def _read_config(recipe: Recipe, model: TargetRecipe) -> PreTrainedConfig:
    source = recipe.source_of(model)
    shipped = shipped_config(source.checkpoint)
    if shipped is None or recipe.has_folder(source.checkpoint):
        return read_config(recipe, model)
    settings = read_settings(shipped)
    return make_config(mtp_settings(settings, str(shipped)) if is_mtp(model) else settings, str(shipped))


def forecast(recipe: Recipe, configs: dict[ModelName, PreTrainedConfig]) -> list[ModelForecast]:
    """The forecast of each model. Raises MxspecError for a model that cannot be compiled."""
    contexts = choose_contexts(recipe, configs)
    return [
        _forecast_model(name, configs[name], model, recipe, contexts[name]) for name, model in models_of(recipe).items()
    ]


def _forecast_model(
    name: ModelName, config: PreTrainedConfig, wanted: TargetRecipe, recipe: Recipe, context_length: int
) -> ModelForecast:
    model = name_parameters(config)
    own, routers = formats_by_config(model, config), router_matrices(model)
    format_of = choose_formats(model, wanted, own)
    matrices, rows = dict(_matrices(model)), kept_rows(wanted)
    if rows is not None:
        matrices = _with_trimmed_head(model, matrices, rows)
    packed = {parameter: _packed_bytes(format_of(parameter), *shape) for parameter, shape in matrices.items()}
    packed |= {parameter: _packed_bytes(FP16_TILES, *shape) for parameter, shape in routers.items()}
    experts = _experts(model, config)
    of_experts = sum(packed[name] for name in experts.tensors) if experts else 0
    stored_once = set(filter(choose_tables(wanted, format_of, own), matrices)) if rows is None else set[str]()
    weights = sum(parameter.numel() for parameter in model.parameters())
    width = 4 if "float32" in str(config.dtype) else 2
    layers = decoder_layers(config) + (config.num_hidden_layers if config.is_encoder_decoder else 0)
    seconds = REFEREE_SECONDS + EXPORT_SECONDS_A_LAYER * layers
    fetched, lent = _stored_bytes(model, width, own), 0
    if isinstance(config, MtpConfig):  # whose tables are the target's, and whose embedding is stored with it
        table = config.vocab_size * config.hidden_size
        fetched, lent = fetched - 2 * width * table, 2 * table
    return ModelForecast(
        name=name,
        checkpoint=wanted.checkpoint,
        architecture=type(model).__name__,
        format=main_format(wanted, own),
        weights=weights,
        fetch_bytes=0 if recipe.has_folder(recipe.source_of(wanted).checkpoint) else fetched,
        file_bytes=sum(packed.values()) + sum(_kept_bytes(model, context_length, stored_once, packed)) - lent,
        cache_bytes=_cache_bytes(config, recipe, context_length, layer_windows(config)),
        whole_cache_bytes=_cache_bytes(config, recipe, context_length, (0,) * decoder_layers(config)),
        context_length=context_length,
        matrices=frozenset(packed),
        matrix_bytes=sum(packed.values()),
        experts=experts,
        expert_bytes=of_experts,
        seconds=seconds + weights * (PACK_SECONDS_A_WEIGHT + CHECK_SECONDS_A_WEIGHT),
    )


def _stored_bytes(model: PreTrainedModel, width: int, own: Mapping[str, str]) -> int:
    """Bytes of the checkpoint's tensors: `width` of a weight, but those that are MX in their `own` formats."""
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    in_blocks = sum(WEIGHT_FORMATS[kind].bits_a_weight * sizes[name] / 8 for name, kind in own.items())
    return int(in_blocks + width * sum(size for name, size in sizes.items() if name not in own))


def _experts(model: PreTrainedModel, config: PreTrainedConfig) -> ExpertsEntry | None:
    """The experts of a mixture."""
    matrices = expert_matrices(model)
    counts = {matrix.experts for matrix in matrices.values()}
    if not counts:
        return None
    return ExpertsEntry(count=min(counts), chosen=chosen_experts(config) or 1, tensors=tuple(matrices))


def _matrices(model: PreTrainedModel) -> Iterator[tuple[str, tuple[int, int]]]:
    """The parameter of every linear layer, of the head and of the experts of a layer, with its n and k."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            n, k = module.weight.shape[::-1] if isinstance(module, Conv1D) else module.weight.shape
            yield names[id(module.weight)], (n, k)
    yield from ((name, matrix.shape) for name, matrix in expert_matrices(model).items())


def _with_trimmed_head(
    model: PreTrainedModel, matrices: Mapping[str, tuple[int, int]], rows: int
) -> dict[str, tuple[int, int]]:
    """The matrices with `rows` rows of the head, which goes by its own name even if it is tied."""
    head = model.get_output_embeddings()
    path = next(path for path, module in model.named_modules() if module is head)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    others = {name: shape for name, shape in matrices.items() if name != names[id(head.weight)]}
    return others | {f"{path}.weight": (rows, head.weight.shape[1])}


def _packed_bytes(format_name: str, n: int, k: int) -> int:
    rows, width = packed_shape(format_name, n, k)
    return rows * width


def _kept_bytes(
    model: PreTrainedModel, context_length: int, stored_once: Collection[str], packed: Collection[str]
) -> Iterator[int]:
    """Bytes of fp16 embedding tables, float32 norms and biases, and float32 cosines and sines by position.

    An embedding that is also a matrix adds none if it is `stored_once`, nor do other matrices that are `packed`.
    Encoder and decoder share embeddings and computed positions.
    """
    counted = {id(model.get_parameter(name)) for name in stored_once}
    computed = set[tuple[int, ...]]()
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding):
            if is_computed(model, f"{path}.weight"):
                computed.add(tuple(module.weight.shape))
            elif id(module.weight) not in counted:
                # T5's biases by distance are no embeddings
                yield (4 if path.endswith("relative_attention_bias") else 2) * module.weight.numel()
            counted.add(id(module.weight))
        elif not isinstance(module, nn.Linear | Conv1D):
            kept = module.named_parameters(prefix=path, recurse=False)
            yield from (4 * parameter.numel() for name, parameter in kept if name not in packed)
        elif module.bias is not None:
            yield 4 * module.bias.numel()
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("inv_freq") and not name.endswith("original_inv_freq"):
                yield 2 * 4 * context_length * buffer.numel()
            elif path.endswith("embed_positions"):
                computed.add(tuple(buffer.shape))
            elif name == "final_logits_bias":
                yield 4 * buffer.numel()
    yield from (4 * math.prod(shape) for shape in computed)


def _cache_bytes(config: PreTrainedConfig, recipe: Recipe, context_length: int, windows: Sequence[int]) -> int:
    """Bytes of the keys and values of all layers, for a text and its source."""
    kv_heads = getattr(config, "num_key_value_heads", None) or decoder_heads(config)
    call = call_tokens([min(recipe.prefill_chunk, context_length)])
    kept = kept_tokens(windows, context_length, context_length, call)
    read = (source_length(recipe, config) or 0) * len(windows)
    return cache_bytes(recipe.caches, kv_heads, head_size(config), kept + read)
