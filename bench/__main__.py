"""`python -m bench NAME`: every measurement, and the tools beside them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import click

from mxspec.runtime.cli.command import Group

MODULES = {  # each holds a command `main`
    "codec": "bench.kernels.codec",
    "ops": "bench.kernels.ops",
    "floor": "bench.kernels.floor",
    "profile": "bench.calls.profile",
    "head": "bench.calls.head",
    "caches": "bench.calls.caches",
    "less-memory": "bench.calls.less_memory",
    "compile-memory": "bench.shapes.compile_memory",
    "imposed": "bench.texts.imposed",
    "edits": "bench.texts.edits",
    "exact-answers": "bench.texts.exact_answers",
    "long-texts": "bench.texts.long_texts",
    "other-tokenizer": "bench.texts.other_tokenizer",
    "soak": "bench.texts.soak",
    "serve-load": "bench.servers.serve_load",
    "serve-grammars": "bench.servers.serve_grammars",
    "llama-cpp": "bench.llama_cpp.shape",
    "llama-cpp-caches": "bench.llama_cpp.caches",
    "llama-cpp-accuracy": "bench.llama_cpp.accuracy",
    "llama-cpp-speculative": "bench.llama_cpp.speculative",
    "llama-cpp-serving": "bench.llama_cpp.serving",
    "gguf-families": "bench.llama_cpp.gguf_families",
    "published-model": "bench.llama_cpp.published_model",
    "compare": "bench.compare.command",
    "shape": "bench.shapes.shape",
    "grow": "bench.shapes.grow_command",
    "pair": "bench.pairs.train",
    "tables": "bench.documents.tables",
    "page-picture": "bench.documents.page_picture",
    "trace-picture": "bench.documents.trace_picture",
}


class Laboratory(Group):
    """A group whose commands are imported when they run; the list shows the first line of each module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*MODULES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command: click.Command | None = None
        if cmd_name in MODULES:
            command = importlib.import_module(MODULES[cmd_name]).main
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(module)) for name, module in MODULES.items()])


def summary(module: str) -> str:
    """The first line of a module's docstring, without importing it."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None, module
    text = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8")))
    assert text is not None, f"{module} has no docstring"
    return text.splitlines()[0].removesuffix(".")


@click.group(cls=Laboratory)
def main() -> None:
    """Measure mxspec as its developers do: kernels, nodes, shapes of known models, other programs, documents."""


if __name__ == "__main__":
    main(prog_name="python -m bench")
