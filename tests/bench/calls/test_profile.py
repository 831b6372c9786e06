"""Profiles: every node is counted once, and the parts of a call add up to it. Times are never judged."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from bench.__main__ import main
from bench.calls import profile as measure
from bench.calls.node_kinds import Kind, kind_of, matrix_bytes, matrix_names
from bench.calls.ort_profile import NodeRun, read_runs
from bench.calls.profile import ProfiledReader, choose_points, middle_half
from mxspec.evaluate.bench import calls
from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.formats.manifest import ModelEntry, ModelName, TensorEntry
from mxspec.runtime.models.reader import Reader
from mxspec.runtime.models.session import Session
from mxspec.runtime.sampling.shape import Logits


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["profile", *arguments])


def profiled(*arguments: str) -> Any:
    result = profile(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_node_is_counted_once_and_the_shares_add_up(tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    got = profiled(str(bundle.path), "--repetitions", "2")
    graph = onnx.load(bundle.graph_path("target"), load_external_data=False).graph
    assert [(c["tokens"], c["cached"]) for c in got["calls"]] == [(1, 8), (8, 8), (1, 64), (8, 64)]
    for call in got["calls"]:
        lines = call["lines"]
        assert sum(line["share"] for line in lines) == pytest.approx(1)
        assert sum(line["seconds"] for line in lines) == pytest.approx(call["profiled_seconds"])
        assert sum(line["nodes"] for line in lines) == len(graph.node)
        assert {op for line in lines for op in line["ops"]} == {node.op_type for node in graph.node}
        assert len(call["trials_seconds"]) == 2 * 3
        assert len(call["trials_profiled_seconds"]) == 2 * 3


def test_lines_name_the_matrices_and_their_bytes(tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    got = profiled(str(bundle.path), "--rows", "2", "--cached", "5", "--repetitions", "1")
    (call,) = got["calls"]
    products = {line["name"]: line for line in call["lines"] if line["group"] == "product"}
    assert {name: (line["shape"], line["nodes"]) for name, line in products.items()} == {
        "q_proj+k_proj+v_proj": ([128, 64], 2),
        "o_proj": ([64, 64], 2),
        "gate_proj+up_proj": ([192, 64], 2),
        "down_proj": ([64, 96], 2),
        "lm_head": ([272, 64], 1),
    }
    assert sum(line["bytes"] for line in products.values()) == got["weight_bytes"]
    groups = {line["group"]: line for line in call["lines"]}
    assert list(groups) == ["product", "attention", "norms", "gates", "other", "between nodes", "outside the session"]
    assert [groups[name]["nodes"] for name in ("attention", "norms", "gates")] == [2, 5, 2]
    cache_bytes = 2 * 2 * 2 * 16 * 5 * 2  # keys and values, layers, heads, head size, tokens, fp16
    assert groups["attention"]["bytes"] == cache_bytes
    assert call["read_bytes"] == got["weight_bytes"] + cache_bytes
    for line in call["lines"]:
        read_seconds = line["bytes"] / call["read_bytes_per_second"]
        assert line["beyond_read_seconds"] == pytest.approx(line["seconds"] - read_seconds)


def test_the_record_holds_what_is_printed_and_no_profile_is_left(
    tiny_bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    got = profiled(str(tiny_bundles["near"]), "--repetitions", "1", "--record", "profile.json")
    assert json.loads((tmp_path / "profile.json").read_text())["result"] == got
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["profile.json", "temporary"]


def test_the_table_of_the_docs_is_made_from_such_a_record(
    tiny_bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: ModuleType
) -> None:
    record = tmp_path / "avx2" / "profile_tinyllama.json"
    (call, *_) = profiled(str(tiny_bundles["near"]), "--repetitions", "1", "--record", str(record))["calls"]
    monkeypatch.setattr(tables, "RECORDS", tmp_path)
    made = tables.TABLES["profile_avx2"].markdown()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in made.splitlines() if line.startswith("|")]
    heads = [line[0] for line in cells if line[0].endswith("cached")]
    assert heads == ["1 after 8 cached", "8 after 8 cached"]  # the documents show the first two calls
    rows = cells[2 : cells.index(["8 after 8 cached", *cells[0][1:]])]
    assert [row[0] for row in rows[:-2]] == [line["name"] for line in call["lines"]]
    assert [rows[-2][0], *rows[-2][2:4]] == [
        "all",
        str(sum(line["nodes"] for line in call["lines"])),
        f"{call['profiled_seconds'] * 1e6:,.0f}",
    ]
    assert {"lm_head", "attention", "norms", "gates", "between nodes"} <= {row[0] for row in rows}
    assert made.splitlines()[-1].startswith("From `")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cached", "5000"], "--rows 1 after --cached 5000: more than the bundle's context of 96 tokens"),
        (["--rows", "8", "--cached", "8", "--cached", "90"], "--rows 8 after --cached 90: more than"),
        (["--rows", "0"], "--rows"),
    ],
)
def test_calls_beyond_the_context_are_refused(tiny_bundles: dict[str, Path], options: list[str], message: str) -> None:
    result = profile(str(tiny_bundles["near"]), *options)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_of_the_usual_calls_those_that_fit_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CACHED", (128, 1000))
    assert choose_points((), (), 1008) == [(1, 128), (8, 128), (1, 1000), (8, 1000)]
    assert choose_points((), (), 1007) == [(1, 128), (8, 128), (1, 1000)]
    assert choose_points((), (), 129) == [(1, 128)]
    with pytest.raises(MxspecError, match="--rows 1 after --cached 128: more than"):
        choose_points((), (), 128)


def test_calls_that_onnx_runtime_did_not_keep_are_an_error(
    tiny_bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ProfiledReader(Bundle.open(tiny_bundles["near"]), tmp_path)
    model.append([1, 2], 1)
    model.append([3], 1)
    monkeypatch.setattr(measure, "read_runs", lambda path: read_runs(path)[:1])
    with pytest.raises(MxspecError, match="kept 1 of 2 calls"):
        model.end()


def test_nodes_belong_to_the_run_that_follows_them(tmp_path: Path) -> None:
    def node(op: str, microseconds: int) -> dict[str, Any]:
        args = {"op_name": op, "input_type_shape": [{"float": [1, 2]}], "output_type_shape": [{"uint8": [3]}]}
        return {"cat": "Node", "name": f"{op}_kernel_time", "dur": microseconds, "args": args}

    def session(name: str, microseconds: int) -> dict[str, Any]:
        return {"cat": "Session", "name": name, "dur": microseconds, "args": {}}

    events = [session("session_initialization", 9), node("A", 3), node("B", 4), session("model_run", 8)]
    events += [node("A", 5), session("SequentialExecutor::Execute", 6), session("model_run", 7)]
    (tmp_path / "profile.json").write_text(json.dumps(events))
    first, second = read_runs(tmp_path / "profile.json")
    assert [n.op for n in first.nodes] == ["A", "B"]
    assert (first.seconds, first.nodes[1].seconds) == pytest.approx((8e-6, 4e-6))
    assert second.nodes == (NodeRun("A", (("float", (1, 2)),), (("uint8", (3,)),), pytest.approx(5e-6)),)
    assert second.seconds == pytest.approx(7e-6)


def test_matrices_keep_the_part_of_their_name_that_tells_them_apart() -> None:
    def tensor(name: str, *shape: int, format: str = "mxfp6_e3m2") -> TensorEntry:
        return TensorEntry(name=name, sources=(), format=format, shape=shape, offset=0, bytes=1, source_bytes=0)

    gpt2 = [
        tensor("transformer.wte.weight", 96, 32, format="fp16"),
        *(tensor(f"transformer.h.{i}.attn.c_proj.weight", 32, 32) for i in (0, 11)),
        *(tensor(f"transformer.h.{i}.mlp.c_proj.weight", 32, 64) for i in (0, 11)),
        tensor("transformer.h.0.attn.c_attn.weight", 96, 32, format="fp16_tiles"),
        tensor("lm_head.weight", 96, 32),
    ]
    names = matrix_names(ModelEntry.model_construct(tensors=tuple(gpt2)))
    assert names == {(32, 32): "attn.c_proj", (32, 64): "mlp.c_proj", (96, 32): "c_attn, lm_head"}
    product = NodeRun("PackedMatMul", (("float", (1, 8, 64)), ("uint8", (2, 800))), (("float", (1, 8, 32)),), 0.0)
    assert kind_of(product, names) == Kind("product", "mlp.c_proj", (32, 64))
    lookup = NodeRun("PackedGather", (("int64", (1, 8)), ("uint8", (6, 400))), (("float", (1, 8, 32)),), 0.0)
    assert (kind_of(lookup, names), matrix_bytes([product, lookup])) == (Kind("other"), 1600)
    assert [kind_of(NodeRun(op, (), (), 0.0), names).group for op in ("LayerNormalization", "GeGLU", "Add")] == [
        "norms",
        "gates",
        "other",
    ]


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_the_middle_half_leaves_out_both_extremes(count: int) -> None:
    seconds = np.random.default_rng(count).permutation(count).tolist()
    assert [seconds[i] for i in middle_half(seconds)] == list(range(count // 4, count - count // 4))


def test_the_models_alternate_call_by_call(monkeypatch: pytest.MonkeyPatch, tiny_bundles: dict[str, Path]) -> None:
    bundle = Bundle.open(tiny_bundles["near"])
    names: tuple[ModelName, ...] = ("target", "draft")
    sessions = [Session.of(bundle, name, 1) for name in names]
    benches = [calls.CallBench(Reader(session)) for session in sessions]
    asked: list[tuple[str, int, int]] = []
    forward = Reader.forward

    def watched(reader: Reader, tokens: Sequence[int], rows: int) -> Logits:
        asked.append((names[sessions.index(reader.session)], len(tokens), reader.length))
        return forward(reader, tokens, rows)

    for bench in benches:
        bench.fill(20)
    monkeypatch.setattr(Reader, "forward", watched)
    assert measure.seconds_alternating(benches, 1, 20).shape == (3, 2)
    assert asked == [("target", 1, 20), ("draft", 1, 20)] * 3
    monkeypatch.setattr(calls, "CALL_SECONDS", 10.0)
    assert measure.seconds_alternating(benches, 2, 20, most=4).shape == (4, 2)
