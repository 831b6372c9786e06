"""Log-likelihoods and answers of the harness's adapter against Engine.score and Engine.generate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from lm_eval.api.instance import Instance
from scipy.special import log_softmax

from mxspec import Engine
from mxspec.evaluate.tasks.likelihoods import Likelihoods
from mxspec.evaluate.tasks.lm_eval_model import MxspecLM
from mxspec.formats.errors import MxspecError
from mxspec.runtime.models.session import Session

HEADER = "two and two are four; three and three are six; "
CONTEXT = 96


@pytest.fixture(scope="module")
def lm(tiny_bundles: dict[str, Path]) -> Iterator[MxspecLM]:
    model = MxspecLM(str(tiny_bundles["near"]), slots=3)
    yield model
    model.close()


def alone(engine: Engine, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    """The oracle: the whole text read from its beginning, in float64."""
    read = [*context, *continuation][-CONTEXT - 1 :][:-1]
    logits = np.concatenate(list(engine.score(read)))[-len(continuation) :]
    chosen = log_softmax(logits.astype(np.float64), axis=1)[np.arange(len(continuation)), list(continuation)]
    return float(chosen.sum()), bool((logits.argmax(axis=1) == continuation).all())


def instances(kind: str, arguments: Sequence[tuple[object, ...]]) -> list[Instance]:
    return [Instance(kind, {}, each, number) for number, each in enumerate(arguments)]


def test_each_equals_the_one_alone(lm: MxspecLM) -> None:
    pairs = [
        (HEADER + question, choice) for question in ("a or b:", "c or d:") for choice in (" a", " be", " c", " de")
    ]
    pairs += [(HEADER + "a or b:", " a"), ("x", "y" * 40), ("z" * 90, "long " * 5), ("", "from nothing")]
    greedy = lm.engine.generate(HEADER, max_new_tokens=5, temperature=0.0).result()
    found = lm.loglikelihood(instances("loglikelihood", pairs))
    for (context, continuation), (logprob, is_greedy) in zip(pairs, found, strict=True):
        ids = lm.tok_encode(context) if context else [lm.prefix_token_id]
        expected = alone(lm.engine, ids, lm.tok_encode(continuation))
        assert logprob == pytest.approx(expected[0], abs=1e-4)
        assert is_greedy == expected[1]
    likelihoods = Likelihoods(Session.of(lm.engine.bundle, "target", 2))
    same, other = likelihoods.of(
        [(lm.tok_encode(HEADER), greedy.token_ids), (lm.tok_encode(HEADER), [*greedy.token_ids[:-1], 7])]
    )
    assert same.greedy
    assert not other.greedy


def test_shared_prefixes_of_contexts_are_read_once(lm: MxspecLM) -> None:
    likelihoods = Likelihoods(Session.of(lm.engine.bundle, "target", 4))
    header = list(HEADER.encode())
    requests = [([*header, ord(question)], list(choice.encode())) for question in "?!." for choice in ("ab", "cd", "e")]
    likelihoods.of(requests)
    # The header once; the last token of each context, and the first token of each choice of two.
    assert likelihoods.read_tokens == len(header) + 3 * (1 + 2)


def test_a_whole_text_is_scored_in_windows(lm: MxspecLM) -> None:
    text = "a text that is longer than the context " * 4
    (found,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]))
    ids = [lm.prefix_token_id, *lm.tok_encode(text)]
    expected = alone(lm.engine, ids[:1], ids[1 : CONTEXT + 1])[0]
    expected += alone(lm.engine, ids[: CONTEXT + 1], ids[CONTEXT + 1 :])[0]
    assert found == pytest.approx(expected, abs=1e-3)


def test_answers_are_the_engines(lm: MxspecLM) -> None:
    settings = {"until": ["e"], "max_gen_toks": 12, "do_sample": False, "temperature": 0.7}
    contexts = [f"{HEADER}{number}" for number in range(7)]
    found = lm.generate_until(instances("generate_until", [(each, settings) for each in contexts]), disable_tqdm=True)
    expected = [
        lm.engine.generate(each, max_new_tokens=12, temperature=0.0, k=0, stop="e").result().text for each in contexts
    ]
    assert found == expected
    assert any(found)
    with pytest.raises(MxspecError, match="'num_beams'"):
        lm.generate_until(instances("generate_until", [("a", {"num_beams": 4})]), disable_tqdm=True)
    sampled = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.5}
    twice = [lm.generate_until(instances("generate_until", [("a", sampled)]), disable_tqdm=True) for _ in range(2)]
    assert twice[0] == twice[1]
