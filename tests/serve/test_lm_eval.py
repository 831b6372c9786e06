"""The lm-evaluation-harness's local-completions against a server: the scores that its model of the engine gives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("lm_eval")

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from mxspec.evaluate.tasks.lm_eval_model import MxspecLM

from .conftest import Server

PAIRS = [
    ("def read", "_lines(path):"),
    ("def read", " me"),
    ("x = ", "[1, 2]"),
    ("", "import os"),
    ("import", " sys\n"),
]


@pytest.fixture(scope="module")
def ours(bundle: Path) -> Iterator[MxspecLM]:
    model = MxspecLM(str(bundle), slots=2)
    yield model
    model.close()


def remote(server: Server, batch: int) -> Any:
    return LocalCompletionsAPI(
        base_url=f"{server.url}/v1/completions", model="tiny", batch_size=batch, max_length=96, max_retries=1
    )


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # its sessions are closed by nobody
@pytest.mark.parametrize("batch", [1, 3])
def test_likelihoods_are_those_of_the_engine(server: Server, ours: MxspecLM, batch: int) -> None:
    model = remote(server, batch)
    assert model.tokenizer_backend == "remote"
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(PAIRS)]
    found = model.loglikelihood(requests, disable_tqdm=True)
    expected = ours.loglikelihood(requests, disable_tqdm=True)
    for (logprob, greedy), (expected_logprob, expected_greedy) in zip(found, expected, strict=True):
        assert logprob == pytest.approx(expected_logprob, abs=1e-4)
        assert greedy == expected_greedy


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_texts_are_those_of_the_engine(server: Server, ours: MxspecLM) -> None:
    settings = {"until": ["zz"], "max_gen_toks": 12, "do_sample": False}
    requests = [Instance("generate_until", {}, (text, settings), n) for n, text in enumerate(("def ", "class A"))]
    assert remote(server, 1).generate_until(requests, disable_tqdm=True) == ours.generate_until(requests, True)


def test_its_tokenizer_is_the_bundles(server: Server, ours: MxspecLM) -> None:
    from lm_eval.utils import RemoteTokenizer

    tokenizer = RemoteTokenizer(server.url + "/v1/completions")
    with tokenizer.session:
        text = "naïve ≠ text"
        assert tokenizer.encode(text) == ours.tok_encode(text, add_special_tokens=False)
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.eos_token_id == ours.eot_token_id
        assert tokenizer.bos_token_id == ours.prefix_token_id
        chat = [{"role": "user", "content": "x"}]
        assert tokenizer.apply_chat_template(chat, tools=None) == ours.apply_chat_template(chat)
    whole = server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json
    assert whole == {"count": 2, "max_model_len": 96, "tokens": [97, 98], "token_strs": ["a", "b"]}
    assert server.post("/tokenize", {"messages": chat}).json["count"] == len("u:x\na:")
    assert server.post("/detokenize", {"tokens": [999]}).json["error"]["param"] == "tokens"
    assert server.post("/tokenize", {"prompt": "x", "messages": chat}).status == 400
