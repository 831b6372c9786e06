"""Collect a bundle's models and files, and make its manifest."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version

from mxspec.compile.weights.write_model import WrittenModel
from mxspec.formats.bundle_writer import BundleWriter
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
from mxspec.recipes.recipe import Recipe

VERSIONS_OF = ("mxspec", "torch", "transformers", "onnx", "onnxscript", "onnx-ir", "onnxruntime")


class Publication:
    """The files and models written into a bundle's folder so far."""

    def __init__(self, writer: BundleWriter) -> None:
        self.writer = writer
        self.models: dict[ModelName, ModelEntry] = {}
        self.contents: dict[str, FileEntry] = {}

    def add_file(self, name: str, sha256: str | None = None) -> None:
        """List a file of the folder; it is hashed here unless the hash is known."""
        self.contents[name] = self.writer.entry(name, sha256)

    def add_model(self, name: ModelName, written: WrittenModel) -> None:
        """List a model and its files."""
        entry = self.models[name] = written.entry
        for graph in entry.graphs:
            self.add_file(graph)
        self.add_file(entry.weights, written.weights_sha256)

    def manifest(
        self,
        recipe: Recipe,
        tokenizer: TokenizerEntry,
        sampling: SamplingDefaults | None = None,
        generation: GenerationRules = NO_RULES,
        guesses: Mapping[GuessesName, GuessesEntry] | None = None,
    ) -> Manifest:
        """The manifest: the result of a recipe, with the versions that made it."""
        return Manifest(
            name=recipe.name,
            k_max=recipe.k_max,
            recipe=recipe.as_dict(),
            models=self.models,
            guesses=dict(guesses or {}),
            tokenizer=tokenizer,
            sampling=sampling or SamplingDefaults(),
            generation=generation,
            files=self.contents,
            versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS_OF},
        )
