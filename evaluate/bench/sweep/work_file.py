"""A file with a line of JSON for each point that was measured, from which a killed sweep goes on.

The first line holds the settings that all points share; a file with other settings is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mxspec.evaluate.bench.sweep.result import Point, SweepPoint
from mxspec.formats.errors import MxspecError


class WorkFile:
    """The points that were measured before, and a place to append more."""

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Raises MxspecError if the file holds points of other settings, or is not such a file."""
        self.path = path
        self.points: dict[Point, SweepPoint] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            whole = [line for line in lines if line.endswith("\n")]  # the last one can have been cut off
            if whole:
                self._require(json.loads(whole[0]), settings)
            for line in whole[1:]:
                point = SweepPoint.model_validate_json(line)
                self.points[point.point] = point
            head = json.dumps({"settings": settings}) + "\n"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(whole) or head, encoding="utf-8")
        except (OSError, UnicodeDecodeError, json.JSONDecodeError, ValidationError) as error:
            first = str(error).splitlines()[0]
            raise MxspecError(f"--work {path}: cannot be used to keep the points of a sweep: {first}") from None

    def add(self, point: SweepPoint) -> None:
        """Append a point to the file at once."""
        self.points[point.point] = point
        with self.path.open("a", encoding="utf-8") as file:
            file.write(point.model_dump_json() + "\n")

    def _require(self, head: Any, settings: dict[str, Any]) -> None:
        if not isinstance(head, dict) or not isinstance(found := head.get("settings"), dict):
            raise MxspecError(f"--work {self.path}: holds no points of a sweep; name another file")
        for name, value in settings.items():
            if found.get(name) != value:
                raise MxspecError(
                    f"--work {self.path}: its points were measured with {name} {found.get(name)}, but this sweep has "
                    f"{value}; remove the file, or name another"
                )
