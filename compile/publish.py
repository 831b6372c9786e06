"""Collect a bundle's files, and make its manifest."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.compile.weights.write_model import WrittenModel
from mxspec.formats.bundle import BundleWriter
from mxspec.formats.generation import NO_RULES, GenerationRules
from mxspec.formats.manifest import (
    FileEntry,
    GuessesEntry,
    GuessesName,
    Manifest,
    ModelEntry,
    ModelName,
    SamplingDefaults,
    TokenizerEntry,
)

TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")
VERSIONS_OF = ("mxspec", "torch", "transformers", "onnx", "onnxscript", "onnx-ir", "onnxruntime")


class Publication:
    """The files written into a bundle's folder so far."""

    def __init__(self, writer: BundleWriter) -> None:
        self.writer = writer
        self.contents: dict[str, FileEntry] = {}

    def add_file(self, name: str, sha256: str | None = None) -> None:
        """List a file of the folder; it is hashed here unless the hash is known."""
        self.contents[name] = self.writer.entry(name, sha256)

    def add_model(self, written: WrittenModel) -> ModelEntry:
        """List a model's files; its entry is returned."""
        for graph in written.entry.graphs:
            self.add_file(graph)
        self.add_file(written.entry.weights, written.weights_sha256)
        return written.entry

    def copy_tokenizer(self, checkpoint: Checkpoint) -> None:
        """Copy the tokenizer's files: tokenizer.json, and others that exist."""
        for path in (checkpoint.tokenizer, *(checkpoint.folder / name for name in TEMPLATE_FILES)):
            if path.is_file():
                shutil.copyfile(path, self.writer.folder / path.name)
                self.add_file(path.name)

    def manifest(
        self,
        recipe: Mapping[str, Any],
        models: Mapping[ModelName, ModelEntry],
        tokenizer: TokenizerEntry,
        sampling: SamplingDefaults | None = None,
        generation: GenerationRules = NO_RULES,
        guesses: Mapping[GuessesName, GuessesEntry] | None = None,
    ) -> Manifest:
        """The manifest: the result of a recipe (plain values), with the versions that made it."""
        return Manifest(
            name=recipe["name"],
            k_max=recipe["k_max"],
            recipe=dict(recipe),
            models=dict(models),
            guesses=dict(guesses or {}),
            tokenizer=tokenizer,
            sampling=sampling or SamplingDefaults(),
            generation=generation,
            files=self.contents,
            versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS_OF},
        )
