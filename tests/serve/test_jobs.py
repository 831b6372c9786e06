"""Jobs without a Ray: their rows, their parts, what belongs together, and how they are laid out on nodes."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from mxspec.formats.errors import MxspecError
from mxspec.runtime.commands.specrun import specrun
from mxspec.serve.commands.specbatch import specbatch
from mxspec.serve.jobs import parts as job_parts
from mxspec.serve.jobs.cluster import ClusterLayout, Messages
from mxspec.serve.jobs.parts import UNFINISHED, Parts
from mxspec.serve.jobs.rows import Rows, name_of
from mxspec.serve.jobs.run import rows_of_a_block

ROWS: list[dict[str, Any]] = [
    {"key": "a", "prompt": "ab", "temperature": 0.5},
    {"key": "b", "messages": [{"role": "user", "content": "line\u2028separator"}]},
    {"key": "c", "prompt": "x", "stop": ["y", "z"]},
]


def write_lines(path: Path, entries: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def report(number: int, **more: Any) -> dict[str, Any]:
    text = {"text": f"é\u2028{number}", "token_ids": [number], "finish_reason": "eos"}
    return {"line": number, "hash": f"{number:016x}", "key": f"k{number}", **text, **more}


@pytest.fixture
def run() -> Callable[..., Result]:
    return lambda *arguments: CliRunner().invoke(specbatch, [*map(str, arguments)])


def test_parquet_and_lines_say_the_same(tmp_path: Path) -> None:
    lines = Rows.of(write_lines(tmp_path / "rows.jsonl", ROWS))
    columns = {name: [row.get(name) for row in ROWS] for row in ROWS for name in row}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    table = Rows.of(tmp_path / "rows.parquet")
    assert [json.loads(line.data) for line in table] == [json.loads(line.data) for line in lines] == ROWS
    assert [line.number for line in table] == [line.number for line in lines] == [1, 2, 3]
    assert [name_of(line) for line in table] == [name_of(line) for line in lines] == ['"a"', '"b"', '"c"']


def test_a_folder_is_read_in_the_order_of_names_and_numbered_on(tmp_path: Path) -> None:
    write_lines(tmp_path / "2.jsonl", [{"prompt": "c"}])
    (tmp_path / "1.jsonl").write_text('{"prompt": "a"}\n\nnonsense\n')
    write_lines(tmp_path / "_hidden.jsonl", ROWS)
    (tmp_path / "readme.txt").write_text("no rows")
    rows = list(Rows.of(tmp_path))
    assert [line.number for line in rows] == [1, 3, 4]
    assert [name_of(line) for line in rows] == ["line 1", "line 3", "line 4"]


def test_bad_input_is_one_line(tmp_path: Path, run: Callable[..., Result], tiny_bundles: dict[str, Path]) -> None:
    def error(path: Path | str) -> str:
        result = run(tiny_bundles["near"], tmp_path / path, tmp_path / "out")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1
        return result.stderr

    write_lines(tmp_path / "twice.jsonl", [*ROWS, {"id": "a", "prompt": "x"}])
    assert 'twice.jsonl: key "a" appears twice, in lines 1 and 4' in error("twice.jsonl")
    assert "missing.jsonl: cannot be read: No such file" in error("missing.jsonl")
    assert "missing.parquet: cannot be read: " in error("missing.parquet")
    assert "expected .jsonl or .parquet" in error("rows.csv")
    (tmp_path / "half.parquet").write_bytes(b"PAR1")
    assert "half.parquet: cannot be read: " in error("half.parquet")
    pq.write_table(pa.table({"promt": ["x"]}), tmp_path / "unknown.parquet")
    assert "unknown column 'promt' (did you mean 'prompt'?)" in error("unknown.parquet")
    pq.write_table(pa.table({"prompt": ["x"], "key": [b"x"]}), tmp_path / "bytes.parquet")
    assert "got a bytes in a row" in error("bytes.parquet")
    (tmp_path / "empty").mkdir()
    assert "a folder with no .jsonl or .parquet file" in error("empty")
    shutil.copy(tmp_path / "twice.jsonl", tmp_path / "empty")
    shutil.copy(tmp_path / "half.parquet", tmp_path / "empty")
    assert "a folder with both .jsonl and .parquet files" in error("empty")
    (tmp_path / "out").rmdir()
    (tmp_path / "out").write_text("a file")
    write_lines(tmp_path / "rows.jsonl", ROWS)
    assert "out: expected a folder" in error("rows.jsonl")
    assert run(tmp_path, tmp_path / "rows.jsonl", tmp_path / "o").stderr.startswith(f"error: bundle {tmp_path}: ")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_parts_are_whole_and_go_on(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_parts, "ANSWERS", 3)
    with Parts(tmp_path, kind) as parts:
        assert list(parts.answered()) == []
        for number in range(1, 6):
            parts.write(report(number))
        with pytest.raises(MxspecError, match="another job is writing it"):
            Parts(tmp_path, kind)
    assert sorted(file.name for file in tmp_path.iterdir()) == [UNFINISHED, f"part-00000.{kind}"]
    with (tmp_path / UNFINISHED).open("ab") as file:
        file.write(b'{"line": 6, "ha')  # killed while this was written
    with Parts(tmp_path, kind) as parts:
        assert [(answer.number, answer.key) for answer in parts.answered()] == [(n, f"k{n}") for n in range(1, 6)]
        kept = (tmp_path / UNFINISHED).read_bytes()
        parts.write(report(7, key=[7], error="no"))
        if kind == "parquet":  # killed after a part was there, before its lines were gone
            (tmp_path / UNFINISHED).write_bytes(kept + json.dumps(report(7, key=[7], error="no")).encode() + b"\n")
    with Parts(tmp_path, kind) as parts:
        assert [answer.number for answer in parts.answered()] == [1, 2, 3, 4, 5, 7]
        parts.write(report(8))
        parts.finish()
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"part-0000{i}.{kind}" for i in range(3)]
    if kind == "parquet":
        rows = pq.read_table(tmp_path).to_pylist()
        assert [row["report"] and json.loads(row["report"])["line"] for row in rows] == [1, 2, 3, 4, 5, 7, 8]
        assert [row["key"] for row in rows] == ["k1", "k2", "k3", "k4", "k5", "[7]", "k8"]
        assert (rows[0]["text"], rows[0]["token_ids"], rows[0]["error"], rows[5]["error"]) == (
            "é\u20281",
            [1],
            None,
            "no",
        )
    with pytest.raises(MxspecError, match="was not written by a batch job"):
        Parts(tmp_path, "parquet" if kind == "jsonl" else "jsonl")


def test_parts_of_strangers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "part-00000.jsonl").write_text('{"text": "not ours"}\n')
    with Parts(tmp_path, "jsonl") as parts, pytest.raises(MxspecError, match="was not written by a batch job"):
        list(parts.answered())


def test_a_job_that_is_done_needs_no_ray(
    tmp_path: Path, run: Callable[..., Result], tiny_bundles: dict[str, Path]
) -> None:
    """What specrun wrote is a part: both write the same."""
    bundle, out = tiny_bundles["near"], tmp_path / "out"
    rows = write_lines(tmp_path / "rows.jsonl", [ROWS[0], {"key": "bad"}, {"prompt": "no key"}])
    out.mkdir()
    arguments = [bundle, "--prompts", rows, "--out", out / "part-00000.jsonl", "--max-new-tokens", "3"]
    assert CliRunner().invoke(specrun, [*map(str, arguments)]).exit_code == 1
    result = run(bundle, rows, out, "--max-new-tokens", "3", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["bad_lines"] == [2]
    assert json.loads(result.stdout)["answered"] == 2
    assert 'key "a" is of another row, bundle or settings' in run(bundle, rows, out).stderr
    write_lines(rows, [ROWS[0], {"key": "bad"}])
    assert "line 3 is of another row" in run(bundle, rows, out, "--max-new-tokens", "3").stderr


def test_without_ray_the_command_says_what_to_install(
    tmp_path: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = run("my.bundle", "rows.jsonl", tmp_path / "out")
    assert result.stderr == 'error: specbatch: Ray is not installed; pip install "mxspec[ray]"\n'
    assert result.exit_code == 1


def test_an_address_without_a_cluster(
    tmp_path: Path, run: Callable[..., Result], tiny_bundles: dict[str, Path]
) -> None:
    job = (tiny_bundles["near"], write_lines(tmp_path / "rows.jsonl", ROWS[:1]), tmp_path / "out", "--address")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert run(*job, address).stderr.startswith(f"error: --address {address}: no cluster answers: ")
    for wrong in ("head", "ray://head:10001", "head:port"):
        assert run(*job, wrong).stderr == f"error: --address {wrong}: expected HOST:PORT of a cluster's head, or auto\n"


@pytest.mark.parametrize(
    ("replicas", "cpus", "nodes", "fitted"),
    [
        (None, None, [2.0], (1, 2)),  # this machine: one replica on all of it
        (2, None, [2.0], (2, 1)),
        (None, 1, [2.0], (2, 1)),
        (None, None, [64.0, 64.0, 4.0], (2, 64)),
        (None, 16, [64.0, 64.0, 4.0], (8, 16)),
        (4, None, [64.0, 64.0], (4, 32)),
        (3, 16, [64.0], (3, 16)),
    ],
)
def test_replicas_fill_the_nodes(
    replicas: int | None, cpus: int | None, nodes: list[float], fitted: tuple[int, int]
) -> None:
    assert ClusterLayout(replicas=replicas, cpus=cpus).fitted(nodes) == fitted


def test_too_many_replicas_are_reported() -> None:
    with pytest.raises(
        MxspecError, match="--replicas 3: there is room for 2 of 1 CPUs each; the largest of 1 nodes has 2"
    ):
        ClusterLayout(replicas=3).fitted([2.0])
    with pytest.raises(MxspecError, match="--replicas 1: there is room for 0 of 8 CPUs each"):
        ClusterLayout(cpus=8).fitted([2.0, 4.0])


def test_messages_of_ray_are_a_sentence_each_and_once() -> None:
    noted: list[str] = []
    messages = Messages(noted.append)
    for address in ("a", "b"):
        print(f"\x1b[33m(raylet)\x1b[0m Task X.submit failed. The actor of {address} died.\nlog\nlog", file=messages)
    print("(raylet) The node with node id: 5f has been marked dead", file=messages)
    messages.over = True
    print("(raylet) Something else.", file=messages)
    assert noted == ["Ray: (raylet) Task X.submit failed", "Ray: (raylet) The node with node id"]


def test_blocks_leave_no_replica_without_work() -> None:
    assert rows_of_a_block(3, 8, 8) == 1
    assert rows_of_a_block(16, 2, 8) == 8
    assert rows_of_a_block(1000, 2, 8) == 8
    assert rows_of_a_block(10_000_000, 100, 8) == 256
