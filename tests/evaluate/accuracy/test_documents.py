"""Texts from files, folders, tables and the hub; what is wrong takes one line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from mxspec.evaluate.accuracy.documents import Document, read_documents
from mxspec.formats.errors import MxspecError


def read(*sources: object, field: str = "text", join: bool = False) -> list[Document]:
    return read_documents([str(source) for source in sources], field, join=join)[0]


def test_a_folder_is_its_text_files_sorted(tmp_path: Path) -> None:
    for name, text in {"b.txt": "bee", "a/z.py": "zed", ".hidden": "no", ".git/x": "no", "c.txt": " \n"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "image").write_bytes(b"\xff\xd8\xff")
    documents, skipped = read_documents([str(tmp_path)], "text", join=False)
    assert documents == [Document("a/z.py", "zed"), Document("b.txt", "bee")]
    assert skipped == 1


def test_rows_are_documents_or_joined_into_one(tmp_path: Path) -> None:
    table = tmp_path / "t.jsonl"
    table.write_text('{"text": "one", "id": 1}\n\n{"text": ""}\n{"text": "two"}\n')
    assert read(table) == [Document(f"{table}:1", "one"), Document(f"{table}:3", "two")]
    assert read(table, join=True) == [Document(str(table), "one\n\n\n\ntwo")]
    with pytest.raises(MxspecError, match="no text named 'body', only text, id: name one with --field"):
        read(table, field="body")
    table.write_text('{"text": "one"}\n{"text"')
    with pytest.raises(MxspecError, match="line 2 is not JSON"):
        read(table)


def test_parquet_by_pyarrow_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MxspecError, match="needs pyarrow"):
        read(path)
    fake: Any = ModuleType("pyarrow.parquet")
    column = SimpleNamespace(to_pylist=lambda: ["one", "two"])
    fake.read_table = lambda given: SimpleNamespace(column_names=["text"], column=lambda name: column)
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", fake)
    assert [document.text for document in read(path)] == ["one", "two"]
    with pytest.raises(MxspecError, match="no column 'body', only text"):
        read(path, field="body")


def test_a_dataset_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def download(repository: str, file: str, **options: Any) -> str:
        asked.append((repository, file, options))
        (tmp_path / "x.jsonl").write_text(json.dumps({"text": "from afar"}))
        return str(tmp_path / "x.jsonl")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    address = "hf://datasets/someone/texts@v2/data/x.jsonl"
    assert read(address) == [Document(f"{address}:1", "from afar")]
    assert asked == [("someone/texts", "data/x.jsonl", {"repo_type": "dataset", "revision": "v2"})]


def test_a_hub_out_of_reach_takes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*arguments: object, **options: object) -> str:
        raise LocalEntryNotFoundError("Cannot find the requested file.\nCheck your connection.")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(MxspecError, match=r"x.txt: cannot be fetched from the hub: Cannot find the requested file\.$"):
        read("hf://datasets/someone/texts/x.txt")
    for wrong in ("hf://someone/texts/x.txt", "hf://datasets/someone/texts", "hf://datasets/x.txt"):
        with pytest.raises(MxspecError, match="expected hf://datasets/OWNER/NAME/FILE"):
            read(wrong)


def test_files_without_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text(" \n")
    (tmp_path / "image").write_bytes(b"\xff\xd8")
    for source, said in (("blank.txt", "holds no text"), ("image", "cannot be read as UTF-8"), ("no", "no: cannot be")):
        with pytest.raises(MxspecError, match=said):
            read(tmp_path / source)
