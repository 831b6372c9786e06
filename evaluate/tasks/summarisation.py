"""Summarisation, rows in the format of XSum: a document and its one-sentence summary; ROUGE-2."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mxspec.evaluate.tasks.task import Row, Task, require


def prompt(row: Row) -> str:
    """The document, and what asks for one sentence."""
    return f"Article: {row['document'].strip()}\n\nSummary in one sentence:"


def rouge_2(row: Row, answer: str) -> float:
    """F1 of pairs of stemmed words that the answer shares with the summary (Lin 2004), 0 to 1."""
    return float(_scorer().score(row["summary"], answer)["rouge2"].fmeasure)


def process_results(row: Row, answers: list[str]) -> dict[str, float]:
    """As lm-evaluation-harness asks for it."""
    return {"rouge2": rouge_2(row, answers[0])}


@lru_cache(maxsize=1)
def _scorer() -> Any:
    return require("rouge_score.rouge_scorer", "rouge-score", "summarisation").RougeScorer(["rouge2"], use_stemmer=True)


SUMMARISATION = Task("summarisation", "ROUGE-2", ("document", "summary"), ("\n",), 64, prompt, rouge_2)
