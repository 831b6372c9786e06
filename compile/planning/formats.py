"""The format of each matrix: that of its codes in an MX checkpoint, or the recipe's."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.checkpoint.experts import expert_matrices
from mxspec.compile.checkpoint.names import rename, tied_names
from mxspec.compile.checkpoint.settings.config import CONFIG
from mxspec.compile.checkpoint.settings.mx_config import take_layout
from mxspec.compile.checkpoint.tensors.mx_tensor import MxTensor
from mxspec.formats.errors import CheckpointError, RecipeError, did_you_mean
from mxspec.formats.weight_format import FP16_TILES
from mxspec.recipes.recipe import TargetRecipe


def own_formats(model: PreTrainedModel, checkpoint: Checkpoint) -> dict[str, str]:
    """The formats of the parameters that are MX in the checkpoint. Raises CheckpointError if tied ones differ."""
    found, _ = rename(model, list(checkpoint.tensors))
    own: dict[str, str] = {}
    for parameter, names in tied_names(model).items():
        sources = [checkpoint.tensors[found[name]] for name in sorted(names) if name in found]
        formats = {source.format if isinstance(source, MxTensor) else None for source in sources}
        if len(formats) > 1:
            held = " and ".join(repr(source.name) for source in sources)
            raise CheckpointError(f"{held} are one parameter by config.json, but they are not stored in one format")
        if (format_name := next(iter(formats), None)) is not None:
            own[parameter] = format_name
    return own


def formats_by_config(model: PreTrainedModel, config: PreTrainedConfig) -> dict[str, str]:
    """The formats of the parameters that a configuration alone says are MX in the checkpoint: gpt-oss's experts."""
    layout = take_layout(copy.deepcopy(config), Path(CONFIG))
    if layout is None or not layout.in_blocks:
        return {}
    found = {name: layout.format_of(name) for name in expert_matrices(model)}
    return {name: kind for name, kind in found.items() if kind is not None}


def _asked_format(wanted: TargetRecipe) -> str | None:
    """The model's format if the recipe names one; None for the default."""
    return wanted.format if "format" in wanted.model_fields_set else None


class Formats:
    """The formats of a model's matrices, as its part of a recipe wants them.

    `own` has the formats of the parameters that are MX in the checkpoint. Raises RecipeError for a pattern that names
    no matrix.
    """

    def __init__(self, model: PreTrainedModel, wanted: TargetRecipe, own: Mapping[str, str]) -> None:
        self._wanted, self._own, self._names = wanted, own, tied_names(model)
        named = model.named_parameters(remove_duplicate=False)
        matrices = sorted({name for name, parameter in named if parameter.ndim == 2} | expert_matrices(model).keys())
        self._rules = [(pattern, FP16_TILES) for pattern in wanted.keep_fp16] + list(wanted.formats)
        for index, (pattern, _) in enumerate(self._rules):
            if not any(fnmatchcase(name, pattern) for name in matrices):
                key = "keep_fp16" if index < len(wanted.keep_fp16) else "formats"
                raise RecipeError(f"{key}: no matrix is named {pattern!r}{did_you_mean(pattern, matrices)}")

    @property
    def main(self) -> str:
        """The model's main format: the requested one, else that of most MX matrices in the checkpoint."""
        if not self._own or _asked_format(self._wanted) is not None:
            return self._wanted.format
        return Counter(self._own.values()).most_common(1)[0][0]

    def of(self, parameter: str) -> str:
        """The format of a matrix: that of its codes in the checkpoint if it has any, or the recipe's.

        Raises RecipeError if the recipe would round its codes a second time.
        """
        matching = (kind for pattern, kind in self._rules if self._matches(parameter, pattern))
        asked, held = next(matching, _asked_format(self._wanted)), self._own.get(parameter)
        if asked is not None and held not in (None, asked) and asked != FP16_TILES:
            raise RecipeError(
                f"{parameter} is {held} in the checkpoint, and {asked} would round it a second time: leave its format "
                f"out of the recipe, or give {held} or fp16"
            )
        return asked or held or self._wanted.format

    def _matches(self, parameter: str, pattern: str) -> bool:
        return any(fnmatchcase(name, pattern) for name in self._names[parameter])

    def stored_once(self, parameter: str) -> bool:
        """Whether a head that is also the embedding is stored once: as the recipe says, else if nothing is lost."""
        exact = self.of(parameter) in (FP16_TILES, self._own.get(parameter))
        return exact if self._wanted.tied is None else self._wanted.tied == "once"
