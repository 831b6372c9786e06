"""What ONNX Runtime's profiler wrote: the runs of a session, and the nodes of each.

It writes one JSON list of events. Those of category "Node" carry the node's operator and the shapes of its inputs and
outputs, and come before the "model_run" of category "Session" that they belong to. Times are whole microseconds, cut
off; a node's own includes some of what the profiler costs, which formats those shapes meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # element type and dimensions of each tensor


@dataclass(frozen=True, slots=True)
class NodeRun:
    """One node of one run."""

    op: str
    inputs: Shapes
    outputs: Shapes
    seconds: float


@dataclass(frozen=True, slots=True)
class SessionRun:
    """One run of the session, with its nodes in the order in which they ran."""

    seconds: float
    nodes: tuple[NodeRun, ...]


def read_runs(path: Path) -> list[SessionRun]:
    """All runs of the profiled session, in order."""
    runs: list[SessionRun] = []
    nodes: list[NodeRun] = []
    with path.open(encoding="utf-8") as file:
        events = json.load(file, object_hook=_keep_little)
    for event in events:
        if isinstance(event, NodeRun):
            nodes.append(event)
        elif isinstance(event, SessionRun):
            runs.append(SessionRun(event.seconds, tuple(nodes)))
            nodes = []
    return runs


def _keep_little(event: dict[str, Any]) -> Any:
    """Shrink an event as soon as it is parsed, because a profile holds many: to a node, or to a run without nodes."""
    if event.get("cat") == "Node" and "op_name" in event["args"]:
        args = event["args"]
        shapes = _shapes(args["input_type_shape"]), _shapes(args["output_type_shape"])
        return NodeRun(args["op_name"], *shapes, event["dur"] * 1e-6)
    if event.get("name") == "model_run":
        return SessionRun(event["dur"] * 1e-6, ())
    return event


def _shapes(listed: list[Mapping[str, list[int]]]) -> Shapes:
    return tuple((kind, tuple(shape)) for tensor in listed for kind, shape in tensor.items())
