"""The points of a measurement: all combinations of the varied settings, and those that were measured before."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mxspec.evaluate.bench.prompts import require_context
from mxspec.evaluate.bench.speculate.result import Point, SpeculationPoint
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError


def points_of(bundles: Sequence[Path], **varied: Sequence[object]) -> list[Point]:
    """All combinations of the values of each setting; points that share an engine are neighbours.

    At temperature 0 the only verifier is "greedy".
    """
    values = {**varied, "bundle": [path.name for path in bundles]}
    combined = itertools.product(*(values[name] for name in Point.model_fields))
    points = (Point.model_validate(dict(zip(Point.model_fields, each, strict=True))) for each in combined)
    return list(dict.fromkeys(p if p.temperature else p.model_copy(update={"verifier": "greedy"}) for p in points))


def require_runnable(bundles: Sequence[Path], points: Sequence[Point], new_tokens: int, *, fp16: bool) -> None:
    """Raises MxspecError if a bundle is invalid, or cannot run one of the points."""
    names = [path.name for path in bundles]
    if len(set(names)) < len(names):
        raise MxspecError(f"BUNDLE: got {', '.join(names)}; expected names that tell the bundles apart")
    for path in bundles:
        bundle = Bundle.open(path)
        require_context(bundle, max(point.context for point in points), new_tokens)
        most = max(point.k if isinstance(point.k, int) else 0 for point in points)
        if most > bundle.manifest.k_max:
            raise MxspecError(f"--k: got {most}, but bundle {path} was compiled for at most {bundle.manifest.k_max}")
        if fp16 and "baseline" not in bundle.manifest.models:
            raise MxspecError(f"--fp16: bundle {path} holds no fp16 baseline: compile it with --with-baseline")
        if "draft" not in bundle.manifest.models and any(point.drafter == "model" for point in points):
            raise MxspecError(f"--drafter: got model, but bundle {path} holds no draft; name another drafter")


class WorkFile:
    """A file with a line of JSON for each measured point, from which a killed measurement goes on.

    The first line holds the settings that all points share; a file with other settings is refused.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Raises MxspecError if the file holds points of other settings, or is not such a file."""
        self.path = path
        self.points: dict[Point, SpeculationPoint] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith("\n")]  # the last one can have been cut off
            if whole:
                self._require(json.loads(whole[0]), settings)
            for line in whole[1:]:
                point = SpeculationPoint.model_validate_json(line)
                self.points[point.point] = point
            head = json.dumps({"settings": settings}) + "\n"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(whole) or head, encoding="utf-8")
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, ValidationError) as error:
            first = str(error).splitlines()[0]
            raise MxspecError(f"--work {path}: cannot be used to keep points: {first}") from None

    def add(self, point: SpeculationPoint) -> None:
        """Append a point to the file at once."""
        self.points[point.point] = point
        with self.path.open("a", encoding="utf-8") as file:
            file.write(point.model_dump_json() + "\n")

    def _require(self, head: Any, settings: dict[str, Any]) -> None:
        if not isinstance(head, dict) or not isinstance(found := head.get("settings"), dict):
            raise MxspecError(f"--work {self.path}: holds no points; name another file")
        for name, value in settings.items():
            if found.get(name) != value:
                raise MxspecError(
                    f"--work {self.path}: its points were measured with {name} {found.get(name)}, but this measurement "
                    f"has {value}; remove the file, or name another"
                )
