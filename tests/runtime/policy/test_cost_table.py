"""What calls cost is kept from run to run, of this bundle and this machine, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxspec.formats.bundle import Bundle
from mxspec.runtime import ops
from mxspec.runtime.engine import Engine
from mxspec.runtime.policy.choose_k import KByLoad, Load
from mxspec.runtime.policy.cost_table import CostTable, read_table, table_path, write_table


def learnt(draft: float) -> KByLoad:
    """A pair whose draft takes so many steps of the target, and is right four times of five."""
    load = KByLoad(4)
    for _ in range(4):
        for k in (0, 2, 4):
            load.observe(k + 1, 1 + 0.05 * k, [("model", 1, draft)] * k)
    return load


@pytest.mark.parametrize(("draft", "k"), [(0.05, 4), (2.0, 0)])
def test_the_next_run_begins_with_the_best_k(draft: float, k: int, tmp_path: Path) -> None:
    path = tmp_path / "costs" / "table.json"
    write_table(path, CostTable.of(learnt(draft)))
    load = KByLoad(4)
    table = read_table(path)
    assert table is not None
    table.teach(load)
    assert load.choose([Load(0.8, 4)]) == [k]
    assert CostTable.of(load).score == table.score


@pytest.mark.parametrize("content", [b"", b"{", b'{"score": [[0, 1]]}', b'{"score": [], "unknown": 1}', b"\xff"])
def test_an_unreadable_table_is_ignored(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_bytes(content)
    assert read_table(tmp_path / "table.json") is None
    assert read_table(None) is None


def test_a_table_that_cannot_be_written_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "costs").write_text("a file where a folder is wanted")
    write_table(tmp_path / "costs" / "table.json", CostTable.of(learnt(0.1)))
    write_table(None, CostTable.of(learnt(0.1)))
    write_table(tmp_path / "table.json", CostTable.of(KByLoad(4)))
    assert not (tmp_path / "table.json").exists()


def test_an_engine_leaves_a_table_of_its_bundle(tiny_bundles: dict[str, Path], cache_home: Path) -> None:
    path = table_path(Bundle.open(tiny_bundles["near"]), "target")
    assert path is not None
    assert path.is_relative_to(cache_home)
    path.unlink(missing_ok=True)
    with Engine(tiny_bundles["near"], slots=1) as engine:
        engine.generate("some text", max_new_tokens=30, ignore_eos=True).result()
    table = read_table(path)
    assert table is not None
    assert len(table.score) >= 2


def test_threads_have_tables_of_their_own(tiny_bundles: dict[str, Path]) -> None:
    bundle, before = Bundle.open(tiny_bundles["near"]), ops.threads()
    paths = set()
    try:
        for threads in (1, 2, 1):
            ops.set_threads(threads)
            paths.add(table_path(bundle, "target"))
    finally:
        ops.set_threads(before)
    assert len(paths) == 2
