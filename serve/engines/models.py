"""The models of a server, found by their ids."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, MxspecError
from mxspec.runtime import drafters
from mxspec.runtime.engine import Engine
from mxspec.serve.engines.token_texts import TokenTexts

SUFFIX = ".bundle"
BASELINE = "-fp16"  # ending of the id of a bundle's own fp16 target


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server has under an id, before it is loaded."""

    id: str
    bundle: Bundle
    kind: Literal["target", "baseline"]
    baseline: str | None  # the id of the same target in fp16


@dataclass(slots=True)
class Served:
    """A model that is loaded."""

    model: ServedModel
    engine: Engine
    limit: int  # number of texts that may run and wait
    created: int
    texts: TokenTexts
    scorer: ThreadPoolExecutor  # of one thread: scores share one session
    under_way: int = 0  # number of texts

    @property
    def id(self) -> str:
        return self.model.id

    @property
    def chat(self) -> bool:
        """Whether the model has a chat template."""
        return self.engine.template is not None


def models_of(bundles: Sequence[Path]) -> list[ServedModel]:
    """The models to be served, in order; raises BundleError for an invalid bundle, and for an id given twice."""
    found: dict[str, ServedModel] = {}
    for path in bundles:
        bundle = Bundle.open(path)
        name = path.resolve().name.removesuffix(SUFFIX)
        baseline = name + BASELINE if "baseline" in bundle.manifest.models else None
        models = [ServedModel(name, bundle, "target", baseline)]
        if baseline is not None:
            models.append(ServedModel(baseline, bundle, "baseline", None))
        for model in models:
            if model.id in found:
                other = found[model.id].bundle.path
                raise BundleError(f"bundle {path}: its id {model.id!r} is also the id of {other}; rename one of them")
            found[model.id] = model
    return list(found.values())


def aliases_of(given: Sequence[str], models: Sequence[ServedModel]) -> dict[str, str]:
    """The ids that further names stand for, from NAME=ID, or NAME for the first; raises MxspecError."""
    ids = [model.id for model in models]
    found: dict[str, str] = {}
    for alias in given:
        name, _, of = alias.partition("=")
        if not name or name in ids or name in found:
            raise MxspecError(f"--alias {alias}: expected NAME=ID with a name that no model has")
        if of and of not in ids:
            raise MxspecError(f"--alias {alias}: got {of!r}, expected one of {', '.join(ids)}")
        found[name] = of or ids[0]
    return found


def describe(served: Served) -> dict[str, Any]:
    """The model as /v1/models lists it."""
    manifest = served.engine.bundle.manifest
    entry = manifest.models[served.model.kind]
    return {
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": "mxspec",
        "mxspec": {
            "format": entry.format,
            "context_length": served.engine.target.capacity,
            "source_length": served.engine.target.source_capacity or None,
            "k_max": manifest.k_max,
            "drafters": [name for name in drafters.NAMES if name in served.engine.drafters],
            "draft": "draft" in manifest.models,
            "baseline": served.model.baseline,
            "chat": served.chat,
            "cores": len(os.sched_getaffinity(0)),
        },
    }
