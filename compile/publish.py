"""A bundle in the making, whatever its weights are: its models, the files that its manifest lists, and the manifest."""

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
    """What has been written into the folder of a bundle so far."""

    def __init__(self, writer: BundleWriter) -> None:
        self.writer = writer
        self.models: dict[ModelName, ModelEntry] = {}
        self.contents: dict[str, FileEntry] = {}

    def add_file(self, name: str, sha256: str | None = None) -> None:
        """List a file that lies in the folder; it is hashed here unless the hash is known."""
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
        """What was made of a recipe, and by which versions."""
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
