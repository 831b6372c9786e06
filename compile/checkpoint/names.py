"""Find the checkpoint tensor of each parameter, by transformers' own rules for renaming and tying."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    rename_source_key,
)

from mxspec.compile.checkpoint.settings.config import one_line
from mxspec.formats.errors import CheckpointError, UnsupportedModelError

UNTIED = "untied_parameters"  # a key that mxspec adds to a configuration: parameters that are not tied after all
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
_TEXT_HALF = "language_model."  # in the names of a checkpoint that holds more: language_model.model.x, or the reverse


@dataclass(frozen=True, slots=True)
class ResolvedNames:
    """Checkpoint tensors by parameter name, and the checkpoint tensors of no parameter."""

    tensor_of: Mapping[str, str]
    ignored: tuple[str, ...]


def model_class(config: PreTrainedConfig) -> Any:
    """transformers' class for a language model of this configuration."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def name_parameters(config: PreTrainedConfig) -> PreTrainedModel:
    """transformers' model with names and shapes only. Raises UnsupportedModelError if it is not a language model."""
    try:
        with torch.device("meta"):
            model: PreTrainedModel = model_class(config).from_config(config)
    except Exception as error:  # a class raises various errors for unexpected values
        raise UnsupportedModelError(f"{config.model_type}: transformers cannot build it: {one_line(error)}") from None
    tie_parameters(model)
    return model


def tie_parameters(model: PreTrainedModel) -> None:
    """Tie parameters, except those that the checkpoint stores separately."""
    model.tie_weights()
    for name in getattr(model.config, UNTIED, ()):
        owner, _, leaf = name.rpartition(".")
        empty = torch.empty(model.get_parameter(name).shape, device="meta")
        setattr(model.get_submodule(owner), leaf, nn.Parameter(empty, requires_grad=False))


def is_computed(model: PreTrainedModel, parameter: str) -> bool:
    """Whether transformers computes a parameter and never saves it, as Marian's sinusoids."""
    return parameter in (model._keys_to_ignore_on_save or ())


def resolve_names(model: PreTrainedModel, tensors: Iterable[str], wanted: Iterable[str]) -> ResolvedNames:
    """Find every wanted parameter among the checkpoint's tensors.

    A missing parameter is taken from one that the model ties to it. Raises CheckpointError if parameters are still
    missing, UnsupportedModelError if transformers would compute a parameter from several tensors.
    """
    tensors = list(tensors)
    found, computed = rename(model, tensors)
    twins = tied_names(model)
    tensor_of: dict[str, str] = {}
    for parameter in wanted:
        names = [parameter, *sorted(twins.get(parameter, set()) - {parameter})]
        source = next((found[name] for name in names if name in found), None)
        if source is None and parameter in computed:
            raise UnsupportedModelError(
                f"{parameter} is not in the checkpoint as it is, but as {computed[parameter]!r}"
            )
        if source is None:
            raise CheckpointError(f"the checkpoint has no tensor for {parameter}; it has {_examples(tensors)}")
        tensor_of[parameter] = source
    used = set(tensor_of.values())
    return ResolvedNames(tensor_of, tuple(name for name in tensors if name not in used))


def tied_names(model: PreTrainedModel) -> dict[str, set[str]]:
    """All names of each parameter: a tied head is both lm_head.weight and the embedding."""
    groups: dict[int, set[str]] = defaultdict(set)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups[id(parameter)].add(name)
    return {name: names for names in groups.values() for name in names}


def rename(model: PreTrainedModel, tensors: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Tensors by the parameter they are, and tensors that would first be merged or split by the parameter they go into.

    Raises CheckpointError for two tensors that are one parameter.
    """
    found: dict[str, str] = {}
    computed: dict[str, str] = {}
    state = model.state_dict()
    for tensor, name, converter in _renamed(model, tensors):
        if converter is not None:
            computed[name] = tensor
        elif name in found:
            raise CheckpointError(f"tensors {found[name]!r} and {tensor!r} are both {name}")
        elif name in state:
            found[name] = tensor
    return found, computed


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """A checkpoint's matrix of one expert, which is the `part`th of those that are stacked for an expert."""

    expert: int
    part: int
    parts: int
    tensor: str


def expert_parts(model: PreTrainedModel, tensors: list[str]) -> dict[str, list[ExpertPart]]:
    """The matrices that transformers stacks to one parameter for all experts of a layer, by that parameter."""
    found: dict[str, list[ExpertPart]] = defaultdict(list)
    for tensor, name, converter in _renamed(model, tensors):
        number = _EXPERT.search(tensor)
        if converter is not None and number is not None and _stacks_experts(converter.rule):
            parts = len(converter.rule.source_patterns)
            found[name].append(ExpertPart(int(number.group(1)), converter.part, parts, tensor))
    return found


@dataclass(frozen=True, slots=True)
class _Converter:
    """A rule of transformers for computing a parameter, and the index of the pattern that a tensor matched."""

    rule: WeightConverter
    part: int


def _renamed(model: PreTrainedModel, tensors: list[str]) -> Iterator[tuple[str, str, _Converter | None]]:
    """Each tensor, the name that transformers gives it, and the converter that would change it.

    The order of rules is that of transformers.core_model_loading.convert_and_load_state_dict_in_model (5.23).
    """
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    of_pattern = {
        pattern: _Converter(rule, part) for rule in converters for part, pattern in enumerate(rule.source_patterns)
    }
    state = model.state_dict()
    prefix = model.base_model_prefix
    for tensor in tensors:
        name, pattern = rename_source_key(in_text_half(tensor), renamings, converters, prefix, state)
        if name not in state and tensor in state:
            name, pattern = rename_source_key(tensor, [], [], prefix, state)
        yield tensor, name, None if pattern is None else of_pattern[pattern]


def _stacks_experts(rule: WeightConverter) -> bool:
    """Whether a rule only stacks the experts' matrices, of several for each expert one below the other."""
    operations = [(type(each), each.dim) for each in rule.operations if isinstance(each, MergeModulelist | Concatenate)]
    stack, join = (MergeModulelist, 0), (Concatenate, 1)
    return len(operations) == len(rule.operations) and operations in ([stack], [stack, join])


def in_text_half(tensor: str) -> str:
    """The tensor's name inside the language model, for a checkpoint that also reads images."""
    return tensor.replace(_TEXT_HALF, "", 1)


def _examples(tensors: list[str]) -> str:
    return f"{', '.join(tensors[:2])} … ({len(tensors)} in all)" if tensors else "none"
