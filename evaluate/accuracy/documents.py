"""The texts to score: a file, a folder, rows of a table, a file of a dataset on the hub, or what the model writes."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import MxspecError
from mxspec.runtime.calibration_text.openings import openings_of
from mxspec.runtime.calibration_text.write import open_writer, text_length, write_texts
from mxspec.runtime.text.tokenizer import load_tokenizer

FIELD = "text"
TOKENS = 8192  # of the model's own texts, by default
_DATASETS = "hf://datasets/"
_TABLES = (".jsonl", ".parquet")
_BETWEEN_ROWS = "\n\n"


@dataclass(frozen=True, slots=True)
class Document:
    """A text that is scored by itself, without the tokens of another text before it. `name` says where it came from.

    With a `source`, the text is an answer, and the encoder reads the source.
    """

    name: str
    text: str
    source: str | None = None


def read_documents(sources: Sequence[str], field: str, *, join: bool) -> tuple[list[Document], int]:
    """Read all sources in order: the documents that are not empty, and the number of files skipped as not text.

    Each row of a table (.jsonl, .parquet) gives a document, its `field`; with `join` a whole table is one document.
    Raises MxspecError for a source that cannot be read or holds no text.
    """
    documents, skipped = [], 0
    for source in sources:
        path = _fetch(source) if source.startswith("hf://") else Path(source)
        found: list[Document] = []
        for file, name in _files(path, source):
            try:
                rows = _rows(file, f"--text {name}", field)
            except UnicodeDecodeError as error:
                if file == path:
                    raise MxspecError(f"--text {source}: cannot be read as UTF-8 text: {error}") from None
                skipped += 1
                continue
            numbered = file.suffix in _TABLES and not join
            for number, row in enumerate(rows if numbered else [_BETWEEN_ROWS.join(rows)], 1):
                if row.strip():
                    found.append(Document(f"{name}:{number}" if numbered else name, row))
        if not found:
            raise MxspecError(f"--text {source}: holds no text, expected UTF-8 that is not empty")
        documents += found
    return documents, skipped


def read_lines(path: Path, option: str, field: str = FIELD) -> list[str]:
    """The lines of a text, or the `field` of each row of a table; empty ones are kept. Raises MxspecError."""
    try:
        rows = _rows(path, f"{option} {path}", field)
    except UnicodeDecodeError as error:
        raise MxspecError(f"{option} {path}: cannot be read as UTF-8 text: {error}") from None
    return rows if path.suffix in _TABLES else rows[0].splitlines()


def _files(path: Path, source: str) -> Iterator[tuple[Path, str]]:
    """The file itself, or all files below a folder, sorted, without hidden ones; each with its name."""
    if not path.is_dir():
        yield path, source
        return
    below = (file for file in path.rglob("*") if not any(part.startswith(".") for part in file.relative_to(path).parts))
    for file in sorted(file for file in below if file.is_file()):
        yield file, str(file.relative_to(path))


def _rows(path: Path, where: str, field: str) -> list[str]:
    """The rows of a table, or the text of another file; `where` holds the option that named the file, and its name."""
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path, where, field)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise MxspecError(f"{where}: cannot be read: {error.strerror or error}") from None
    if path.suffix == ".jsonl":
        return [_of_row(row, field, where) for row in _json_lines(text, where)]
    return [text]


def _json_lines(text: str, where: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise MxspecError(f"{where}: line {number} is not JSON: {error}") from None


def _of_row(row: Any, field: str, where: str) -> str:
    value = row.get(field) if isinstance(row, dict) else row
    if not isinstance(value, str):
        held = ", ".join(row) if isinstance(row, dict) else type(row).__name__
        raise MxspecError(f"{where}: a row has no text named {field!r}, only {held}: name one with --field")
    return value


def _read_parquet(path: Path, where: str, field: str) -> list[str]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise MxspecError(
            f"{where}: reading parquet needs pyarrow: pip install pyarrow, or give text or .jsonl"
        ) from None
    try:
        table = parquet.read_table(path)
    except OSError:
        raise
    except Exception as error:  # pyarrow raises ValueErrors and errors of its own
        raise MxspecError(f"{where}: cannot be read as parquet: {' '.join(str(error).split())}") from None
    if field not in table.column_names:
        raise MxspecError(
            f"{where}: has no column {field!r}, only {', '.join(table.column_names)}: name one with --field"
        )
    return [_of_row({field: value}, field, where) for value in table.column(field).to_pylist()]


def _fetch(address: str) -> Path:
    """Download hf://datasets/OWNER/NAME/FILE unless the local cache has it; `@REVISION` may follow NAME.

    Raises MxspecError if the address is invalid, the hub cannot be reached, or it has no such file.
    """
    owner, _, rest = address.removeprefix(_DATASETS).partition("/")
    repository, _, file = rest.partition("/")
    name, _, revision = repository.partition("@")
    if not address.startswith(_DATASETS) or not owner or not name or not file:
        raise MxspecError(f"--text {address}: expected {_DATASETS}OWNER/NAME/FILE")
    import huggingface_hub  # comes with tokenizers; imported late, because it is slow to import
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(
            huggingface_hub.hf_hub_download(f"{owner}/{name}", file, repo_type="dataset", revision=revision or None)
        )
    except (OSError, HFValidationError) as error:  # the hub's HTTP errors are OSErrors
        lines = str(error).strip().splitlines()
        raise MxspecError(
            f"--text {address}: cannot be fetched from the hub: {lines[0] if lines else type(error).__name__}"
        ) from None


def write_documents(bundle: Bundle, tokens: int, seed: int, count: Callable[[int, int], object]) -> list[Document]:
    """About `tokens` tokens in texts that the baseline writes. Raises MxspecError for a model with an encoder.

    `count` gets the tokens that are written, and those to write.
    """
    entry = bundle.manifest.models["baseline"]
    if entry.encoder is not None:
        raise MxspecError("--own: a model with an encoder writes nothing without a source; give --source and --text")
    length = text_length(entry.context_length)
    number = max(1, tokens // length)
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        count(done, number * length)

    tokenizer = load_tokenizer(bundle.tokenizer_path)
    session = open_writer(bundle.path, entry, bundle.manifest.tokenizer.vocab_size, number)
    windows = write_texts(session, openings_of(bundle.path, tokenizer), number, length, seed, advance)
    texts = tokenizer.decode_batch(windows.tolist(), skip_special_tokens=False)
    return [Document(f"own text {i}", text) for i, text in enumerate(texts, 1) if text]
