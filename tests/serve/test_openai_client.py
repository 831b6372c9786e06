"""The `openai` package against a server, compared with the engine and with specrun in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from click.testing import CliRunner

from mxspec.runtime.commands.specrun import specrun
from mxspec.runtime.engine import Engine

from .conftest import SAID, Server, Serving

PROMPT = "a text that "


@pytest.fixture(scope="module")
def server(bundle: Path, serving: Serving) -> Iterator[Server]:
    with serving(bundle, "--slots", "4") as server:
        yield server


def specrun_text(bundle: Path, *arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(specrun, [str(bundle), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_a_completion_is_the_text_that_specrun_writes(client: Any, bundle: Path) -> None:
    expected = specrun_text(bundle, PROMPT, "--raw", "--temperature", "0", "--max-new-tokens", "40")
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=40, temperature=0)
    assert answer.choices[0].text == expected["text"]
    assert answer.choices[0].finish_reason == {"max_new_tokens": "length", "eos": "stop"}[expected["finish_reason"]]
    assert answer.usage.prompt_tokens == expected["prompt_tokens"]
    assert answer.usage.completion_tokens == len(expected["token_ids"])
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_adds_up_to_the_whole_answer(client: Any) -> None:
    settings: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 30, "seed": 3, "temperature": 0.9}
    whole = client.completions.create(**settings)
    chunks = list(
        client.completions.create(
            **settings,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"mxspec": {"origins": True, "k": 3, "verifier": "match"}},  # the same text at every K
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    own = [chunk.choices[0].model_extra["mxspec"] for chunk in chunks if chunk.choices]
    tokens = [token for one in own for token in one.get("tokens", [])]
    assert len(tokens) == whole.usage.completion_tokens
    assert own[-1]["statistics"]["origins"]["target"] == sum(token["origin"] == "target" for token in tokens)
    assert any(token["origin"] == "model" for token in tokens)


def test_log_probabilities_are_those_of_scores(client: Any, engine: Engine) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, temperature=0, logprobs=3, echo=True)
    choice = answer.choices[0]
    assert choice.text.startswith(PROMPT)
    ids = engine.encode(PROMPT) + engine.generate(PROMPT, temperature=0, max_new_tokens=12).result().token_ids
    logits = np.concatenate(list(engine.score(ids))).astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
    expected -= logits.max(1, keepdims=True)
    found = choice.logprobs.token_logprobs
    assert found[0] is None
    assert np.allclose(found[1:], [expected[i, token] for i, token in enumerate(ids[1:])], atol=2e-5)
    for i, top in enumerate(choice.logprobs.top_logprobs[1:]):
        assert max(top.values()) == pytest.approx(expected[i].max(), abs=2e-5)
        assert 3 <= len(top) <= 4
    offsets = choice.logprobs.text_offset
    assert offsets == sorted(offsets)
    assert len(offsets) == len(ids)


def test_prompts_come_as_a_text_as_ids_and_in_lists(client: Any, engine: Engine) -> None:
    texts = [PROMPT, "x = "]
    ids = [engine.encode(text) for text in texts]
    settings: Any = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    answers = [client.completions.create(prompt=prompt, **settings) for prompt in (texts, ids, texts[0], ids[0])]
    both = [choice.text for choice in answers[0].choices]
    assert [choice.text for choice in answers[1].choices] == both
    assert answers[2].choices[0].text == answers[3].choices[0].text == both[0]
    assert [choice.index for choice in answers[0].choices] == [0, 1]
    assert answers[0].usage.prompt_tokens == sum(map(len, ids))


def test_several_texts_and_the_best_of_them(client: Any, engine: Engine) -> None:
    settings: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 10, "temperature": 1, "seed": 5}
    expected = [a.text for a in engine.generate(PROMPT, n=3, seed=5, temperature=1, max_new_tokens=10).results()]
    answer = client.completions.create(n=3, **settings)
    assert [choice.text for choice in answer.choices] == expected
    best = engine.generate(PROMPT, best_of=3, seed=5, temperature=1, max_new_tokens=10).result()
    answer = client.completions.create(best_of=3, **settings)
    assert [choice.text for choice in answer.choices] == [best.text]
    assert answer.usage.completion_tokens >= len(best.token_ids) * 2  # what was written and left out counts
    streamed: dict[int, str] = {}
    for chunk in client.completions.create(n=3, stream=True, **settings):
        streamed[chunk.choices[0].index] = streamed.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert [streamed[i] for i in range(3)] == expected


def test_the_best_beams_whole_and_streamed(client: Any, engine: Engine) -> None:
    expected = engine.generate(PROMPT, beams=4, n=2, max_new_tokens=10, length_penalty=0.5).results()
    settings: Any = {
        "model": "tiny",
        "prompt": PROMPT,
        "max_tokens": 10,
        "temperature": 0,
        "n": 2,
        "extra_body": {"mxspec": {"beams": 4, "length_penalty": 0.5}},
    }
    answer = client.completions.create(**settings)
    assert [choice.text for choice in answer.choices] == [found.text for found in expected]
    assert [choice.mxspec["score"] for choice in answer.choices] == [found.score for found in expected]
    assert answer.usage.completion_tokens == sum(len(found.token_ids) for found in expected)
    streamed = {0: "", 1: ""}
    for chunk in client.completions.create(stream=True, **settings):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert list(streamed.values()) == [found.text for found in expected]


def test_a_chat_is_what_specrun_answers(client: Any, bundle: Path) -> None:
    expected = specrun_text(bundle, "say so", "--temperature", "0", "--max-new-tokens", "20")
    answer = client.chat.completions.create(
        model="tiny", messages=SAID, max_completion_tokens=20, temperature=0, logprobs=True, top_logprobs=2
    )
    choice = answer.choices[0]
    assert choice.message.content == expected["text"]
    assert choice.message.role == "assistant"
    assert len(choice.logprobs.content) == len(expected["token_ids"])
    for entry, token in zip(choice.logprobs.content, expected["token_ids"], strict=True):
        assert entry.bytes == [token] if token < 256 else entry.token.startswith("<")
        assert entry.logprob == entry.top_logprobs[0].logprob
        assert len(entry.top_logprobs) == 2


def test_a_streamed_chat_begins_with_its_role(client: Any) -> None:
    settings: Any = {"model": "tiny", "messages": SAID, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**settings).choices[0].message.content
    chunks = list(client.chat.completions.create(stream=True, **settings))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].model_extra["timings"]["predicted_n"] == 20


def test_without_a_limit_a_chat_goes_on_to_the_end_of_the_context(client: Any, engine: Engine) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=SAID, temperature=0, extra_body={"mxspec": {"ignore_eos": True}}
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.total_tokens == engine.target.capacity + 1  # the last token is never read


def test_an_answer_keeps_to_a_schema(client: Any) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema |= {"additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}  # this model likes blanks
    answer = client.chat.completions.create(
        model="tiny",
        messages=SAID,
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}},
    )
    assert json.loads(answer.choices[0].message.content or "")["a"] in (1, 2)
    assert answer.choices[0].finish_reason == "stop"
    answer = client.chat.completions.create(
        model="tiny", messages=SAID, max_tokens=60, seed=1, temperature=1, response_format={"type": "json_object"}
    )
    assert (answer.choices[0].message.content or "").lstrip().startswith("{")


def test_calls_of_tools_are_read_from_the_text(client: Any) -> None:
    tools: Any = [{"type": "function", "function": {"name": "sun", "parameters": {"type": "object"}}}]
    call = r'<tool_call>\{"name": "sun", "arguments": \{"city": "(Rome|Oslo)"\}\}</tool_call>'
    settings: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "?"}],
        "tools": tools,
        "extra_body": {"mxspec": {"regex": f"ok{call}"}},
    }
    choice = client.chat.completions.create(**settings).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "ok"
    found: Any = choice.message.tool_calls[0]
    assert found.function.name == "sun"
    city = json.loads(found.function.arguments)["city"]
    assert city in ("Rome", "Oslo")
    chunks = list(client.chat.completions.create(stream=True, **settings))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "ok"
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    assert [delta.function.name for delta in deltas if delta.function] == ["sun"]
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    history: Any = [
        {"role": "user", "content": "?"},
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": found.id, "content": "sun"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=history, max_tokens=1)
    assert answer.usage.prompt_tokens == len(f"u:?\na:ok\nsun({city})\nt:sun\na:")


def test_models_are_listed(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == "tiny"
    assert client.models.retrieve("tiny").model_extra == model.model_extra
    own = (model.model_extra or {})["mxspec"]
    assert own["chat"] is True
    assert own["context_length"] == 96
    assert own["k_max"] == 8
    assert own["draft"] is True
    assert own["baseline"] is None
    assert {"model", "suffix", "hierarchical", "none"} <= set(own["drafters"])
    with pytest.raises(openai.NotFoundError) as error:
        client.completions.create(model="huge", prompt="x")
    assert error.value.code == "model_not_found"
    assert error.value.param == "model"


@pytest.mark.parametrize("settings", [{"k": 0}, {"k": 3}, {"drafter": "suffix"}, {"drafter": "hierarchical", "k": 8}])
def test_no_way_of_drafting_changes_a_greedy_text(client: Any, settings: dict[str, Any]) -> None:
    asked: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    plain = client.completions.create(**asked)
    answer = client.completions.create(**asked, extra_body={"mxspec": settings})
    assert answer.choices[0].text == plain.choices[0].text


def test_a_greedy_text_that_is_asked_for_twice_is_the_same_one(client: Any) -> None:
    for _ in range(2):  # streamed too, by the choices' numbers
        answer = client.completions.create(model="tiny", prompt="a text", n=2, temperature=0, max_tokens=5)
    one, two = answer.choices
    assert (one.text, one.index, two.index) == (two.text, 0, 1)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 10)


def test_a_token_of_ones_own_ends_the_text(client: Any, engine: Engine) -> None:
    ids = engine.generate("a text", temperature=0, max_new_tokens=9).result().token_ids
    last = next(token for token in ids[1:] if token != ids[0])
    answer = client.completions.create(
        model="tiny", prompt="a text", temperature=0, max_tokens=9, extra_body={"stop_token_ids": [last]}
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == ids.index(last) + 1


def test_an_answer_goes_on_from_the_last_message(client: Any, engine: Engine) -> None:
    chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "so it"}]
    answer = client.chat.completions.create(
        model="tiny",
        messages=chat,
        temperature=0,
        max_tokens=5,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    wanted = engine.generate("u:x\na:so it", temperature=0, max_new_tokens=5).result().text
    assert answer.choices[0].message.content == wanted
