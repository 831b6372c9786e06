"""Write the tables and pictures of the documents from the records, so that no figure there is typed by hand.

    python -m bench tables           # rewrite tables and pictures
    python -m bench tables --check   # exit with 1 where one is not what the records say

A table stands between `<!-- table: NAME -->` and `<!-- end -->`; TABLES says which records make it. A picture stands
between `<!-- picture: NAME -->` and `<!-- end -->`, as a link to docs/images/bench/NAME.svg; PICTURES says which record
makes the picture, and which of the record's pictures it is.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from bench.documents.kinds import read
from bench.documents.old_pictures import pictures
from mxspec.evaluate.bench.plots.style import save
from mxspec.evaluate.record import Record
from mxspec.evaluate.render import markdown
from mxspec.evaluate.result import joined
from mxspec.runtime.cli.command import Command

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "bench" / "records"  # records that depend on the machine are in a folder for its instruction set
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "bench" / "performance.md")
DRAWN = ROOT / "docs" / "images" / "bench"


@dataclass(frozen=True, slots=True)
class Table:
    """Sheets of records: several sheets of one record by number, or one sheet of several records as one table."""

    records: tuple[str, ...]
    sheets: tuple[int, ...] = (0,)

    def markdown(self) -> str:
        """The table, and the source of its figures."""
        found = [read(RECORDS / f"{name}.json") for name in self.records]
        shown = [joined([record.result.sheets()[number] for record in found]) for number in self.sheets]
        return "\n\n".join([*map(markdown, shown), source(found)])


def source(records: Sequence[Record]) -> str:
    """The source of figures: commands, machine, commit."""
    first = records[0]
    commands = "; ".join(f"`{record.command}`" for record in records)
    return f"From {commands} on {first.where}."


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a record, with its text for readers who cannot see it."""

    record: str
    name: str
    shows: str

    def draw(self, path: Path) -> None:
        """Write the picture as an SVG file."""
        found = read(RECORDS / f"{self.record}.json")
        save(path, found, pictures(found.result)[self.name], ("svg",))


ACCURACY_SMOLLM2 = ("e3m2", "e2m3_int16", "e2m3", "e2m1")
OVER_K = "Speedup over K, measured and by the formula"

# A record that a document shows gets its line here, and `<!-- table: NAME -->` or `<!-- picture: NAME -->` there.
TABLES: dict[str, Table] = {
    "accuracy_smollm2": Table(tuple(f"accuracy_smollm2_{name}" for name in ACCURACY_SMOLLM2), (1,)),
    "llama_cpp_smollm2_accuracy": Table(("llama_cpp_smollm2_accuracy",)),
    "codec": Table(("avx512vnni/codec",)),
    "compile": Table(("compile_7b", "compile_13b", "compile_7b_gptq")),
    "ops_avx2": Table(("avx2/ops",)),
    "ops_avx512vbmi": Table(("avx512vbmi/ops",)),
    "floor_avx512vbmi": Table(("avx512vbmi/floor",)),
    "model_smollm2_amx": Table(("amx/model_smollm2",)),
    "attention_avx512vbmi": Table(("avx512vbmi/ops",), (2,)),
    "model_e2m3_int8_avx512vbmi": Table(("avx512vbmi/model_tinyllama_e2m3_int8",)),
    "profile_avx2": Table(("avx2/profile_tinyllama",), (0, 1)),
    "llama_cpp_avx512vbmi": Table(("avx512vbmi/llama_cpp",)),
    "llama_cpp_smollm2_amx": Table(("amx/llama_cpp_smollm2",)),
    "batch_avx512vnni": Table(("avx512vnni/batch_tinyllama",)),
    "columns_avx512vbmi": Table(("avx512vbmi/columns_grown",)),
    "columns_smollm2_avx512vbmi": Table(("avx512vbmi/columns_smollm2",)),
    "columns_smollm2_head_avx512vbmi": Table(("avx512vbmi/columns_smollm2_head",)),
    "other_tokenizer_smollm2": Table(("other_tokenizer_smollm2",)),
    "speculate_tinyllama_avx2": Table(("avx2/speculate_tinyllama",)),
}
PICTURES: dict[str, Picture] = {
    "accuracy_smollm2": Picture("accuracy_smollm2_own_e3m2", "accuracy", "Divergence of each format over its size"),
    "columns": Picture("avx512vbmi/columns_grown", "columns", "Tokens a second of the three columns"),
    "speculate_grown_speedup": Picture("avx512vbmi/speculate_grown", "speedup", OVER_K),
}


def render(text: str, document: Path) -> str:
    """The text with all tables and links to pictures made again."""

    def replace(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        made = TABLES[name].markdown() if kind == "table" else link(name, document)
        return f"<!-- {kind}: {name} -->\n{made}\n<!-- end -->"

    return re.sub(r"<!-- (table|picture): (\w+) -->\n.*?<!-- end -->", replace, text, flags=re.DOTALL)


def link(name: str, document: Path) -> str:
    path = (DRAWN / f"{name}.svg").relative_to(document.parent)
    return f"![{PICTURES[name].shows}]({path.as_posix()})"


def stale_pictures(shown: Sequence[str], check: bool) -> bool:
    """Draw the pictures that the documents show; returns whether one was out of date, or is not shown any more."""
    stale = False
    with tempfile.TemporaryDirectory() as folder:
        for name in shown:
            made, kept = Path(folder) / f"{name}.svg", DRAWN / f"{name}.svg"
            PICTURES[name].draw(made)
            if not kept.exists() or kept.read_bytes() != made.read_bytes():
                stale = True
                if not check:
                    DRAWN.mkdir(parents=True, exist_ok=True)
                    kept.write_bytes(made.read_bytes())
    for path in DRAWN.glob("*.svg"):
        if path.stem not in shown:
            stale = True
            if not check:
                path.unlink()
    return stale


@click.command(cls=Command)
@click.option("--check", is_flag=True, help="Write nothing; the exit code is 1 if a table or picture is out of date.")
def main(check: bool) -> int:
    """Write the tables and pictures of the documents from the records."""
    stale = False
    shown: list[str] = []
    for document in DOCUMENTS:
        text = document.read_text()
        made = render(text, document)
        shown += re.findall(r"<!-- picture: (\w+) -->", made)
        stale |= made != text
        if not check:
            document.write_text(made)
    stale |= stale_pictures(shown, check)
    return int(check and stale)
