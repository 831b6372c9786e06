"""What a single model type needs before it is traced: a file each, by the name of its model type.

A file has `patch(model, call)`, which changes modules of the model in place, and may have `prepare(config)`, which runs
before the model is built, and `BUILT_WITH`, the attention that its class must be asked for where it refuses ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

from transformers import PreTrainedConfig, PreTrainedModel

from mxspec.compile.trace.attention import CallInputs
from mxspec.compile.trace.skeleton import ATTENTION_NAME


@dataclass(frozen=True, slots=True)
class Family:
    """What is done for a model type."""

    built_with: str
    prepare: Callable[[PreTrainedConfig], None]
    patch: Callable[[PreTrainedModel, CallInputs], None]


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a configuration; of a model type without a file, one that does nothing."""
    name = f"{__name__}.{config.model_type}"
    found = config.model_type.isidentifier() and find_spec(name) is not None
    module = import_module(name) if found else None
    return Family(
        getattr(module, "BUILT_WITH", ATTENTION_NAME),
        getattr(module, "prepare", lambda config: None),
        getattr(module, "patch", lambda model, call: None),
    )
