"""The drafters of an engine, by the names under which users ask for them."""

from __future__ import annotations

from mxspec.formats.bundle import Bundle
from mxspec.formats.errors import BundleError, GenerationError
from mxspec.formats.safetensors_file import map_arrays
from mxspec.runtime.drafters.draft import Draft, StatesDraft
from mxspec.runtime.drafters.drafter import Drafter, NoDrafter
from mxspec.runtime.drafters.hierarchical import HierarchicalDrafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.ngram import NgramDrafter, NgramTables
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.drafters.suffixes.suffix_corpus import SuffixCorpus
from mxspec.runtime.drafters.text_draft import TextDraft, TextDrafter


def drafters_of(bundle: Bundle, draft: Draft | None, shared_suffixes: int) -> dict[str, Drafter]:
    """Those of a bundle; raises BundleError for invalid tables, as far as that shows without reading them."""
    vocab_size = bundle.manifest.tokenizer.vocab_size
    suffix, ngram = bundle.guesses_path("suffix"), bundle.guesses_path("ngram")
    try:
        corpus = None if suffix is None else SuffixCorpus.of(map_arrays(suffix), vocab_size)
        ngrams = None if ngram is None else NgramTables(map_arrays(ngram), vocab_size)
    except BundleError as error:
        raise BundleError(f"bundle {bundle.path}: {error}") from None
    return make_drafters(vocab_size, draft, shared_suffixes, corpus, ngrams)


def make_drafters(
    vocab_size: int,
    draft: Draft | None,
    shared_suffixes: int = 0,
    corpus: SuffixCorpus | None = None,
    ngrams: NgramTables | None = None,
) -> dict[str, Drafter]:
    """The drafters that are possible: guessing by a model needs a draft, guessing by tables needs the tables."""
    drafters: list[Drafter] = [NoDrafter(), SuffixDrafter(shared_suffixes, corpus)]
    if ngrams is not None:
        drafters.append(NgramDrafter(ngrams))
    if draft is not None:
        drafters.append(TextDrafter(draft) if isinstance(draft, TextDraft) else ModelDrafter(draft))
        if not isinstance(draft, StatesDraft | TextDraft):
            drafters.append(HierarchicalDrafter(draft))
    return {drafter.name: drafter for drafter in drafters}


def why_missing(name: str, *, has_draft: bool) -> GenerationError:
    """The error for a drafter that users can ask for and this bundle does not have."""
    if has_draft and name == "hierarchical":
        return GenerationError(
            "drafter",
            f"got {name!r}, but the bundle's draft reads hidden states or writes text, one token after the "
            "other; take model",
        )
    needed = "no n-gram tables; compile it with --ngram TEXT" if name == "ngram" else "no draft; compile it with one"
    return GenerationError("drafter", f"got {name!r}, but the bundle holds {needed}")
