"""Summarisation in the format of XSum: each row has a document and its one-sentence summary; scored by ROUGE-2."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mxspec.evaluate.tasks.task import Row, Task, require


def prompt(row: Row) -> str:
    """The document, and the request for one sentence."""
    return f"Article: {row['document'].strip()}\n\nSummary in one sentence:"


def rouge_2(row: Row, answer: str) -> float:
    """F1 of the pairs of stemmed words in answer and summary (Lin 2004), from 0 to 1."""
    return float(_scorer().score(row["summary"], answer)["rouge2"].fmeasure)


def process_results(row: Row, answers: list[str]) -> dict[str, float]:
    """The score of the first answer, in the harness's form."""
    return {"rouge2": rouge_2(row, answers[0])}


@lru_cache(maxsize=1)
def _scorer() -> Any:
    return require("rouge_score.rouge_scorer", "rouge-score", "summarisation").RougeScorer(["rouge2"], use_stemmer=True)


SUMMARISATION = Task("summarisation", "ROUGE-2", ("document", "summary"), ("\n",), 64, prompt, rouge_2)
