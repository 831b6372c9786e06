"""The drafters of an engine, by the names under which users ask for them."""

from __future__ import annotations

from mxspec.formats.errors import GenerationError
from mxspec.runtime.drafters.drafter import Drafter
from mxspec.runtime.drafters.hierarchical import HierarchicalDrafter
from mxspec.runtime.drafters.lookup import LookupDrafter
from mxspec.runtime.drafters.mix import MixDrafter
from mxspec.runtime.drafters.model import ModelDrafter
from mxspec.runtime.drafters.ngram import NgramDrafter
from mxspec.runtime.drafters.ngram_tables import NgramTables
from mxspec.runtime.drafters.none import NoDrafter
from mxspec.runtime.drafters.random import RandomDrafter
from mxspec.runtime.drafters.suffix import SuffixDrafter
from mxspec.runtime.drafters.suffix_corpus import SuffixCorpus
from mxspec.runtime.session import Session


def make_drafters(
    vocab_size: int,
    draft: Session | None,
    *,
    shared_suffixes: int = 0,
    corpus: SuffixCorpus | None = None,
    ngrams: NgramTables | None = None,
) -> dict[str, Drafter]:
    """Those that a bundle allows: one that guesses by a model needs a draft, one by tables the tables."""
    suffix = SuffixDrafter(shared_suffixes, corpus)
    mixed: list[Drafter] = [SuffixDrafter(0, corpus)]
    drafters: list[Drafter] = [NoDrafter(), RandomDrafter(vocab_size), suffix, LookupDrafter()]
    if ngrams is not None:
        drafters.append(NgramDrafter(ngrams))
        mixed.append(drafters[-1])
    if draft is not None:
        drafters += [ModelDrafter(draft), HierarchicalDrafter(draft)]
        mixed.append(ModelDrafter(draft))
    return {drafter.name: drafter for drafter in (*drafters, MixDrafter(mixed))}


def why_missing(name: str) -> GenerationError:
    """The error for a drafter that users can ask for and this bundle does not have."""
    needed = "no n-gram tables; compile it with --ngram TEXT" if name == "ngram" else "no draft; compile it with one"
    return GenerationError(f"drafter: got {name!r}, but the bundle holds {needed}")
