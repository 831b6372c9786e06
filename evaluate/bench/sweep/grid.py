"""The points of a sweep: all combinations of the varied settings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxspec.evaluate.bench.context import require_context
from mxspec.evaluate.bench.sweep.result import Point
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.request import K


@dataclass(frozen=True, slots=True)
class Grid:
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

    def require(self, new_tokens: int) -> None:
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
            if "draft" not in bundle.manifest.models and "model" in self.drafter:
                raise MxspecError(f"--drafter: got model, but bundle {path} holds no draft; name another drafter")
