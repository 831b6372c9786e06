"""Changes that a model type needs before it is traced: one file for each, with the name of the model type.

A file has `patch(model, call)`, which changes modules of the model in place. It may have `prepare(config)`, which runs
before the model is built, and `BUILT_WITH`, the attention to build the class with if it refuses mxspec's.
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
    """The changes for a model type."""

    built_with: str
    prepare: Callable[[PreTrainedConfig], None]
    patch: Callable[[PreTrainedModel, CallInputs], None]


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a configuration; for a model type without a file, one that changes nothing."""
    name = f"{__name__}.{config.model_type}"
    found = config.model_type.isidentifier() and find_spec(name) is not None
    module = import_module(name) if found else None
    return Family(
        getattr(module, "BUILT_WITH", ATTENTION_NAME),
        getattr(module, "prepare", lambda config: None),
        getattr(module, "patch", lambda model, call: None),
    )
