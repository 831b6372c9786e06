"""The engine: a bundle made ready to generate and to score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import GenerationError
from mxspec.formats.manifest import ModelName
from mxspec.runtime import ops
from mxspec.runtime.choose_k import AutoK, FixedK, KChooser
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.none import NoDrafter
from mxspec.runtime.generation import Generation, Request
from mxspec.runtime.model import Model
from mxspec.runtime.sampling.settings import Sampling
from mxspec.runtime.sampling.shape import Logits
from mxspec.runtime.text import load_tokenizer

DrafterName = Literal["model", "none"]
K = int | Literal["auto"]
DEFAULT_K = 4


class Engine:
    """Runs one bundle, one sequence at a time.

    `threads` is how many threads the process's operators work on (all usable cores by default); no result depends on
    it. Raises BundleError where the bundle cannot be trusted or loaded.
    """

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        self.bundle = Bundle.open(path)
        self.tokenizer = load_tokenizer(self.bundle.tokenizer_path)
        self._models: dict[ModelName, Model] = {}
        self._auto_k = AutoK(self.bundle.manifest.k_max)  # one for all texts: it gets to know the pair
        if threads is not None:
            if threads < 1:
                raise GenerationError(f"threads: got {threads}, expected at least 1")
            ops.set_threads(threads)

    def default_k(self, temperature: float) -> K:
        """By cost where the text is the same at every K, else one that a seed can be repeated with."""
        return "auto" if temperature == 0 else min(DEFAULT_K, self.bundle.manifest.k_max)

    def chooser(self, k: K) -> KChooser:
        """What says how many tokens each round drafts."""
        return self._auto_k if k == "auto" else FixedK(k)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with the special tokens that the tokenizer puts around a prompt."""
        return list(self.tokenizer.encode(text).ids)

    def model(self, name: ModelName) -> Model:
        """The target, the draft or the baseline, loaded when first asked for."""
        if name not in self._models:
            self._models[name] = Model(self.bundle, name)
        return self._models[name]

    def score(self, token_ids: Sequence[int], *, model: ModelName = "target") -> Iterator[Logits]:
        """Yield chunks of logits float32[rows, vocab]; row i (over all chunks) predicts token i + 1."""
        scorer = self.model(model)
        self._check_prompt(token_ids, scorer.capacity)
        return scorer.score(token_ids)

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 128,
        k: K | None = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        drafter: DrafterName = "model",
    ) -> Generation:
        """An iterator over tokens and rounds as they happen, closed by Finished; mistakes are raised at once.

        Temperature 0 is greedy: the text is the one that the target alone writes, at every k. Otherwise it follows
        the target's distribution, shaped by temperature, top_k and top_p. k is the most that is drafted in a round:
        0 to the bundle's k_max, or "auto", which chooses it for each round by what it costs. Default: "auto" if
        greedy, else 4, because sampled text depends on k. Raises GenerationError.
        """
        manifest = self.bundle.manifest
        tokens = self.encode(prompt) if isinstance(prompt, str) else [int(token) for token in prompt]
        sampling = Sampling(temperature, top_k, top_p, seed)
        k = self.default_k(temperature) if k is None else k
        if k != "auto" and not 0 <= k <= manifest.k_max:
            raise GenerationError(f"k: got {k}, expected auto, or 0 to {manifest.k_max}, the k_max of the bundle")
        if max_new_tokens < 1:
            raise GenerationError(f"max_new_tokens: got {max_new_tokens}, expected at least 1")
        self._check_prompt(tokens, manifest.models["target"].context_length)
        request = Request(tokens, sampling, self.chooser(k), max_new_tokens)
        proposer = self._drafter(drafter if k else "none")
        return Generation(self.model("target"), proposer, request, self.tokenizer, manifest.tokenizer.eos_token_ids)

    def _drafter(self, name: DrafterName) -> Drafter:
        if name == "none":
            return NoDrafter()
        return ModelDrafter(self.model("draft"))

    def _check_prompt(self, tokens: Sequence[int], limit: int) -> None:
        vocab = self.bundle.manifest.tokenizer.vocab_size
        if not 0 < len(tokens) <= limit:
            raise GenerationError(f"prompt: got {len(tokens)} tokens, expected 1 to {limit}, the context length")
        if not all(0 <= token < vocab for token in tokens):
            raise GenerationError(f"prompt: got token ids outside 0 to {vocab - 1}: use the bundle's tokenizer")
