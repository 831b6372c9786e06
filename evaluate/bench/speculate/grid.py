"""The points of a measurement: all combinations of the varied settings, and those that were measured before."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mxspec.evaluate.bench.prompts import require_context
from mxspec.evaluate.bench.speculate.result import Point, SpeculationPoint
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.settings import K


@dataclass(frozen=True, slots=True)
class SettingsGrid:
    """The values of each varied setting. At temperature 0 the only verifier is "greedy"."""

    bundles: tuple[Path, ...]
    threads: tuple[int, ...]
    batch: tuple[int, ...]
    context: tuple[int, ...]
    temperature: tuple[float, ...]
    drafter: tuple[str, ...]
    verifier: tuple[str, ...]
    k: tuple[K, ...]

    def points(self) -> list[Point]:
        """All points; points that share an engine are neighbours."""
        names = ("bundle", "threads", "batch", "context", "temperature", "drafter", "verifier", "k")
        values: list[Sequence[object]] = [[path.name for path in self.bundles], self.threads, self.batch, self.context]
        values += [self.temperature, self.drafter, self.verifier, self.k]
        points = (Point.model_validate(dict(zip(names, each, strict=True))) for each in itertools.product(*values))
        return list(dict.fromkeys(p if p.temperature else p.model_copy(update={"verifier": "greedy"}) for p in points))

    def require(self, new_tokens: int, *, fp16: bool) -> None:
        """Raises MxspecError if a bundle is invalid, or cannot run one of the points."""
        names = [path.name for path in self.bundles]
        if len(set(names)) < len(names):
            raise MxspecError(f"BUNDLE: got {', '.join(names)}; expected names that tell the bundles apart")
        for path in self.bundles:
            bundle = Bundle.open(path)
            require_context(bundle, max(self.context), new_tokens)
            most = max(k for k in (*self.k, 0) if isinstance(k, int))
            if most > bundle.manifest.k_max:
                raise MxspecError(
                    f"--k: got {most}, but bundle {path} was compiled for at most {bundle.manifest.k_max}"
                )
            if fp16 and "baseline" not in bundle.manifest.models:
                raise MxspecError(f"--fp16: bundle {path} holds no fp16 baseline: compile it with --with-baseline")
            if "draft" not in bundle.manifest.models and "model" in self.drafter:
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
