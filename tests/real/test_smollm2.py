"""A published model, from its GGUF file to texts: SmolLM2-135M-Instruct, as scripts/published-model fetches it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from transformers import AutoTokenizer

import mxspec
from bench.llama_cpp.perplexity import model_of, of_model
from bench.llama_cpp.published_model import TEXT, WINDOWS, digest, texts
from mxspec.compile.check.reference import forward, load_reference
from mxspec.compile.checkpoint.checkpoint import Checkpoint
from mxspec.evaluate.bench.serve.server import specserve
from mxspec.evaluate.speccheck import main as speccheck
from mxspec.formats.bundle import Bundle
from mxspec.runtime.commands.specrun import specrun
from mxspec.runtime.text.tokenizer import load_tokenizer

# Of llama.cpp, which rounds activations: python -m bench published-model build/llama_cpp
PEER_IDS = "d3201f0db1c181842835817a5409e5d88e4baf3d864b8007ec643ee5cc2419ee"
PEER_PERPLEXITY = 15.9351

QUESTIONS = (
    "What is the capital of France?",
    "What is a compiler? Answer in two sentences.",
    "Name three colours.",
    "Write a Python function that adds two numbers.",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "How many days does a week have?",
    "Explain in one sentence what a cache is.",
    "What is the largest planet of the solar system?",
    "List the first five prime numbers.",
)


@pytest.fixture(scope="module")
def checkpoint(file: Path) -> Iterator[Checkpoint]:
    with Checkpoint(file) as opened:
        yield opened


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Iterator[mxspec.Engine]:
    with mxspec.Engine(bundle, slots=5) as opened:
        yield opened


def request(question: str, **settings: Any) -> mxspec.Request:
    return mxspec.Request(
        messages=[{"role": "user", "content": question}], **{"temperature": 0, "max_new_tokens": 32} | settings
    )


def ids_of(engine: mxspec.Engine, requests: Sequence[mxspec.Request]) -> list[tuple[int, ...]]:
    return [tuple(answer.token_ids) for answer in engine.run(requests)]


def test_manifest_names_the_types_of_the_file(bundle: Path) -> None:
    target = Bundle.open(bundle).manifest.models["target"]
    assert {origin for tensor in target.tensors for origin in tensor.origins} == {"Q4_1", "Q8_0"}
    assert target.referee is not None
    assert target.referee.own is not None
    assert target.referee.own < 3e-3
    assert target.referee.int8_rows == pytest.approx(0.0097, rel=0.1)


def test_token_ids_are_those_of_the_peer(checkpoint: Checkpoint) -> None:
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    assert digest(tokenizer.encode(text).ids for text in texts()) == PEER_IDS


def test_greedy_text_is_that_of_transformers(bundle: Path, checkpoint: Checkpoint) -> None:
    """Of the fp16 model; transformers reads each answer whole, and must find each of its tokens likeliest."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder)
    model = load_reference(checkpoint, checkpoint.config)
    with mxspec.Engine(bundle, model="baseline", slots=5) as baseline:
        answers = ids_of(baseline, [request(question) for question in QUESTIONS])
    for question, answer in zip(QUESTIONS, answers, strict=True):
        chat = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        logits = forward(model, (*prompt, *answer), 0)[len(prompt) - 1 : -1]
        assert tuple(logits.argmax(axis=1)) == answer, question


def test_drafters_and_batches_change_nothing(engine: mxspec.Engine) -> None:
    plain = [request(question, k=0) for question in QUESTIONS[:5]]
    together = ids_of(engine, plain)
    assert [ids_of(engine, [alone])[0] for alone in plain] == together
    for drafter in ("model", "suffix"):
        drafted = [request(question, k=4, drafter=drafter) for question in QUESTIONS[:5]]
        assert ids_of(engine, drafted) == together, drafter


def test_the_trained_head_is_often_right(engine: mxspec.Engine) -> None:
    """Greedy answers to questions that nothing was trained on; a head that reads the wrong states is never right."""
    drafted = [request(question, k=2, drafter="model", max_new_tokens=96) for question in QUESTIONS]
    counted = [answer.statistics for answer in engine.run(drafted)]
    assert sum(each.accepted for each in counted) > 0.3 * sum(each.evaluated for each in counted)


def test_a_seed_means_one_text_at_every_k(engine: mxspec.Engine) -> None:
    sampled = {"temperature": 0.8, "seed": 3, "verifier": "match"}
    texts = {ids_of(engine, [request(QUESTIONS[3], k=k, **sampled)])[0] for k in (0, 2, 8)}
    assert len(texts) == 1


def test_a_chat_of_one_turn(bundle: Path) -> None:
    done = CliRunner().invoke(specrun, [str(bundle), QUESTIONS[0], "--temperature", "0", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"]
    assert answer["finish_reason"] == "eos"


def test_json_by_a_schema(engine: mxspec.Engine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Spain"]}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    grammar = mxspec.Grammar.json_schema(schema)
    plain, drafted = (answer.text for answer in engine.run(request(QUESTIONS[0], grammar=grammar, k=k) for k in (0, 4)))
    assert plain == drafted
    assert json.loads(plain)["country"] == "France"


def test_server_and_engine_answer_the_same(bundle: Path, engine: mxspec.Engine) -> None:
    (expected,) = engine.run([request(QUESTIONS[0])])
    body = {"model": "smollm2", "messages": [{"role": "user", "content": QUESTIONS[0]}], "temperature": 0}
    with specserve(bundle) as server:
        asked = urllib.request.Request(
            f"{server.address.url}/v1/chat/completions",
            json.dumps(body | {"max_tokens": 32}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked) as response:
            answer = json.load(response)
    assert answer["choices"][0]["message"]["content"] == expected.text


def test_accuracy_is_the_recorded_one(bundle: Path) -> None:
    """E2M3 to nearest with int8 rows, of weights that were rounded to four bits before."""
    options = ["--text", str(TEXT), "--window", "512", "--max-tokens", "1024", "--max-ratio", "1.2", "--json"]
    done = CliRunner().invoke(speccheck, ["accuracy", str(bundle), *options])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["ratio"] == pytest.approx(1.0800, abs=1e-3)
    assert found["mean_kl_divergence"] == pytest.approx(0.0597, abs=1e-3)


def test_perplexity_is_near_the_peers(bundle: Path, checkpoint: Checkpoint) -> None:
    ids = load_tokenizer(checkpoint.tokenizer).encode(TEXT.read_text()).ids
    baseline = model_of(Bundle.open(bundle), "baseline")
    assert of_model(baseline, ids, WINDOWS) == pytest.approx(PEER_PERPLEXITY, rel=5e-3)
