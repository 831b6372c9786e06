"""Folders, traced graphs and verdicts of the referee, made once in a run and shared by its workers.

Traced graphs outlive the run in build/traces, as a compiler's objects do in ccache, until something changes that traces
depend on: a package of TRACERS, or a file of TRACING.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mxspec

if TYPE_CHECKING:  # torch takes seconds to import
    import onnx_ir as ir

    from mxspec.compile.planning.model import Model
    from mxspec.compile.trace.interface import GraphInterface


TRACES = Path(__file__).resolve().parents[1] / "build" / "traces"
# What traces may import (docs/architecture.md has the order), and what builds the models that are traced.
TRACING = (
    "formats",
    "recipes",
    "compile/progress.py",
    "compile/quiet.py",
    "compile/heads",
    "compile/checkpoint",
    "compile/graph",
    "compile/trace",
    "compile/planning/export_graph.py",
)
TRACERS = ("torch", "transformers", "onnx", "onnxscript", "onnx-ir", "numpy")
KEPT = 3  # states of TRACING and TRACERS whose graphs are kept


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """A folder of the run that the first worker to ask fills, while others wait. It is read only."""

    def make(folder: Path) -> None:
        folder.mkdir()
        fill(folder)

    return _made_once(_run_folder(factory) / "folders" / name, make)


@contextmanager
def compiled_once(factory: pytest.TempPathFactory) -> Iterator[None]:
    """While it lasts, compiling in this process traces and judges only what no worker of the run has.

    The passes, weights and checks of each model are its own. torch's exporter lists its operators once, too. Rounding
    `auto` is to nearest, and no cost is measured: toys of random weights have nothing to lose.
    """
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    from mxspec.compile import pipeline
    from mxspec.compile.check.referee import judge
    from mxspec.compile.planning import export_graph
    from mxspec.compile.trace.trace import trace

    run, graphs = _run_folder(factory), kept_graphs(TRACES, Path(mxspec.__file__).parent)

    def trace_once(interface: GraphInterface) -> ir.Model:
        path = _made_once(graphs / _key_of_trace(interface), lambda path: _write_graph(trace(interface), path))
        return _read_graph(path)

    def judge_once(*given: Any) -> Any:
        config, *others = given
        key = _digest(config.to_json_string(), *others)
        path = _made_once(run / "verdicts" / key, lambda path: path.write_bytes(pickle.dumps(judge(*given))))
        return pickle.loads(path.read_bytes())

    def to_nearest(models: Collection[Model], *_: object) -> None:
        for model in models:
            model.rounding = "nearest" if model.recipe.rounding == "auto" else model.recipe.rounding
            model.calibration_tokens = model.recipe.calibration_tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        patch.setattr(export_graph, "trace", trace_once)
        patch.setattr(pipeline, "judge", judge_once)
        patch.setattr(pipeline, "choose_rounding", to_nearest)
        patch.setattr(pipeline, "measure_cost", lambda *_: None)
        yield


def kept_graphs(traces: Path, package: Path) -> Path:
    """The folder in `traces` for graphs traced by the files of TRACING in `package` and the installed TRACERS.

    The oldest folders of other states of them are removed.
    """
    packages = [(name, version(name)) for name in TRACERS]
    sources = [(str(path), path.read_bytes()) for path in [*_sources(package), Path(__file__)]]
    folder = traces / _digest(sys.version, packages, sources)
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in sorted(traces.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(other, ignore_errors=True)
    return folder


def _sources(package: Path) -> Iterator[Path]:
    for name in TRACING:
        place = package / name
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


def _run_folder(factory: pytest.TempPathFactory) -> Path:
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def _made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, made under another name first: what failed half way is made again by the next who asks."""
    path.parent.mkdir(exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            work = path.with_name(f"{path.name}.work")
            shutil.rmtree(work, ignore_errors=True)
            make(work)
            work.rename(path)
    return path


def _digest(*parts: object) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(repr(part).encode())
        whole.update(b"\0")
    return whole.hexdigest()


def _key_of_trace(interface: GraphInterface) -> str:
    """Everything that a traced graph depends on: config, modules, names and sizes; no trace reads values.

    Formats of products are left out: `Traces` sets them in each graph after the trace (compile/trace/test_traces.py).
    """
    from torch.utils._pytree import tree_flatten

    from mxspec.compile.trace.decoder import DecoderInterface
    from mxspec.compile.trace.packed import PackedLinear

    model = interface.model
    arguments, form = tree_flatten(interface.arguments())
    first: dict[int, str] = {}  # of tied parameters
    products = {path: module.source for path, module in model.named_modules() if isinstance(module, PackedLinear)}
    return _digest(
        type(interface).__qualname__,
        interface.inputs,
        interface.outputs,
        interface.hidden_states.places if isinstance(interface, DecoderInterface) else (),
        form,
        [(argument.dtype, tuple(argument.shape)) for argument in arguments],
        model.config.to_json_string(use_diff=False),
        model,
        [(path, replace(source, format="", activations="int16")) for path, source in products.items()],
        [
            (name, first.setdefault(id(value), name), value.dtype, tuple(value.shape))
            for name, value in model.named_parameters(remove_duplicate=False)
        ],
        [
            (name, value.dtype, tuple(value.shape))
            for name, value in model.named_buffers(remove_duplicate=False)
            if name.removesuffix(".weight") not in products
        ],
    )


def _write_graph(graph: ir.Model, path: Path) -> None:
    """Initializers have no values yet: each is written as if its values were in another file."""
    import onnx_ir as ir

    for name, value in graph.graph.initializers.items():
        assert value.const_value is not None
        held = value.const_value
        value.const_value = ir.ExternalTensor("nowhere", None, None, held.dtype, shape=held.shape, name=name)
    path.write_bytes(ir.serde.serialize_model(graph).SerializeToString())


def _read_graph(path: Path) -> ir.Model:
    import onnx
    import onnx_ir as ir

    return ir.serde.deserialize_model(onnx.ModelProto.FromString(path.read_bytes()))
