"""The cost of guessing without a model after a long history: microseconds and bytes for each token.

    bench/drafters.py TOKENIZER.json TEXT... [--history 100000] [--tokens 2000]

The texts are joined: first comes the history, then the text that is written, a token each round as if no guess were
kept. Reading the history is timed apart. The corpus holds the whole text.
"""

from __future__ import annotations

import argparse
import json
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from mxspec.compile.guesses.count_ngrams import count_ngrams
from mxspec.evaluate.bench.harness import seconds_of
from mxspec.evaluate.bench.medians import median, percentile
from mxspec.formats.suffix_order import suffix_order
from mxspec.runtime.drafters.lookup import LookupText
from mxspec.runtime.drafters.ngram import NgramTables, NgramText
from mxspec.runtime.drafters.suffixes.suffix_corpus import SuffixCorpus
from mxspec.runtime.drafters.suffixes.suffix_text import SuffixText
from mxspec.runtime.policy.break_even import BreakEven

K = 8
LEAST = 0.05  # a token is proposed from this chance on
Guess = Callable[[Sequence[int]], object]


def guessers(tokens: Sequence[int], vocab_size: int) -> dict[str, Callable[[], Guess]]:
    """For each drafter, a function that makes a new text's memory and returns its guess after given tokens."""
    ids = np.array(tokens, np.int32)
    corpus = SuffixCorpus.of({"tokens": ids, "ends": suffix_order(ids)}, vocab_size)
    tables = NgramTables(count_ngrams(ids, vocab_size), vocab_size)

    def suffix(searched: SuffixCorpus | None) -> Guess:
        memory = SuffixText(0, corpus=searched)
        return lambda text: memory.guess(text, [], K).worthwhile(BreakEven(row=LEAST))

    def lookup() -> Guess:
        memory = LookupText()
        return lambda text: memory.guess(text, [], K).worthwhile(BreakEven(row=LEAST))

    def ngram() -> Guess:
        memory = NgramText(tables)
        return lambda text: memory.chances(text, [], K, LEAST)

    return {
        "suffix": lambda: suffix(None),
        "suffix with a corpus": lambda: suffix(corpus),
        "lookup": lookup,
        "ngram": ngram,
    }


def measure(make: Callable[[], Guess], tokens: list[int], history: int) -> dict[str, float]:
    """The figures of one drafter."""
    guess, text = make(), tokens[:history]
    read = seconds_of(lambda: guess(text))
    rounds = []
    for token in tokens[history:]:
        text.append(token)
        rounds.append(seconds_of(lambda: guess(text)))
    tracemalloc.start()
    again = make()
    again(tokens[:history])
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "history_us_a_token": round(1e6 * read / history, 2),
        "median_us_a_token": round(1e6 * median(rounds), 1),
        "p99_us_a_token": round(1e6 * percentile(rounds, 99), 1),
        "bytes_a_token": round(kept / history),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--history", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=2000)
    asked = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(asked.tokenizer))
    tokens: list[int] = []
    for path in asked.texts:
        tokens += tokenizer.encode(path.read_text(errors="replace"), add_special_tokens=False).ids
        if len(tokens) >= asked.history + asked.tokens:
            break
    else:
        parser.error(f"the texts hold {len(tokens)} tokens, expected {asked.history + asked.tokens}")
    tokens = tokens[: asked.history + asked.tokens]
    for name, make in guessers(tokens, tokenizer.get_vocab_size()).items():
        print(json.dumps({"drafter": name} | measure(make, tokens, asked.history)), flush=True)


if __name__ == "__main__":
    main()
