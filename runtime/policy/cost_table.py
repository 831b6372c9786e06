"""Keep the costs of a bundle's calls on this machine in the user's cache folder, so that the next run knows them.

Then K is chosen by cost from the first text on. Each bundle, processor, instruction set, number of threads and version
has its own table. A table that cannot be read is ignored; one that cannot be written is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, PositiveInt, ValidationError

from mxspec.formats.bundle import Bundle, file_sha256
from mxspec.formats.manifest import MANIFEST, ModelName
from mxspec.runtime import ops
from mxspec.runtime.policy.choose_k import KByLoad
from mxspec.runtime.policy.shares import Share

Points = list[tuple[PositiveInt, NonNegativeFloat]]  # the tokens or texts of a call, and its seconds


class CostTable(BaseModel):
    """The costs of steps, of drafters' calls and of prompts that a draft reads, and the acceptance of drafts."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    score: Points
    draft: dict[str, Points]
    draft_read: Points
    acceptance: dict[str, NonNegativeFloat]

    @classmethod
    def of(cls, load: KByLoad) -> CostTable:
        """The table of the costs that were learnt."""
        return cls(
            score=load.score.recent_points,
            draft={name: costs.recent_points for name, costs in load.draft.items()},
            draft_read=load.draft_read.recent_points,
            acceptance={name: share.value for name, share in load.pair.items()},
        )

    def teach(self, load: KByLoad) -> None:
        """Teach `load` these costs as if they had just been learnt."""
        load.score.remember(self.score)
        load.draft_read.remember(self.draft_read)
        for name, points in self.draft.items():
            load.draft[name].remember(points)
        for name, share in self.acceptance.items():
            load.pair[name] = Share.like(Share(min(share, 1.0), 1.0))


def table_path(bundle: Bundle, model: ModelName) -> Path | None:
    """The path of the table of a bundle with this target on this machine; None if the user has no home folder."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mxspec" / "costs"
    except RuntimeError:
        return None
    what = (
        file_sha256(bundle.path / MANIFEST),  # the manifest has the hashes of all other files
        model,
        ops.processor_name(),
        platform.machine(),
        str(ops.instruction_set()),
        str(ops.threads()),
        version("mxspec"),
        version("onnxruntime"),
    )
    digest = hashlib.sha256("\n".join(what).encode()).hexdigest()
    return folder / f"{digest[:32]}.json"


def read_table(path: Path | None) -> CostTable | None:
    """The table of an earlier run, or None if it is missing or cannot be read."""
    if path is None:
        return None
    try:
        return CostTable.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_table(path: Path | None, table: CostTable) -> None:
    """Save a table for the next run; the file is replaced in one step."""
    if path is None or len(table.score) < 2:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(table.model_dump_json())
        Path(beside).replace(path)
