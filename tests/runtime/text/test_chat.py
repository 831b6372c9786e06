"""Chat templates: the text that transformers renders from the same files, and one line for what cannot be rendered."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from mxspec.formats.errors import BundleError, GenerationError
from mxspec.runtime.text.chat import ChatTemplate

from .chat_templates import EVERYTHING, SPECIAL, TEMPLATES, bundle_of

USER = {"role": "user", "content": " Hello <b>&'\" {{ 1 }} é日 "}
CHATS: list[list[dict[str, Any]]] = [
    [USER],
    [USER, {"role": "assistant", "content": "<think>so</think>\n\nHi. "}, {"role": "user", "content": "more"}],
    [{"role": "system", "content": "Be brief."}, USER],
    [USER, USER],
    [{"role": "note", "content": ""}, USER, {"role": "stop", "content": "x"}, USER],
    [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1]}}}]},
    ],
    [USER, {"role": "tool", "content": "7"}, {"role": "tool", "content": "8"}],
]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<é>", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """transformers' tokenizer for the files of a folder."""
    from transformers import PreTrainedTokenizerFast

    def load(folder: Path) -> Any:
        tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
        tokenizer.save(str(folder / "tokenizer.json"))
        return PreTrainedTokenizerFast.from_pretrained(folder)

    return load


def required(folder: Path, config: Any = SPECIAL, template: str | None = None) -> ChatTemplate:
    return ChatTemplate.required(bundle_of(folder, config, template))


def outcome(render: Callable[[], str]) -> tuple[str, str]:
    """The text, or what went wrong in one line."""
    try:
        return "text", render()
    except Exception as problem:
        return "error", " ".join(str(problem).removeprefix("messages: the chat template fails: ").split())


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_the_one_that_transformers_renders(tmp_path: Path, theirs: Any, name: str) -> None:
    ours = required(tmp_path, template=TEMPLATES[name])
    oracle = theirs(tmp_path).apply_chat_template
    outcomes = set()
    for chat, tools, prompt in itertools.product(CHATS, (None, TOOLS), (True, False)):
        found = outcome(partial(ours.render, chat, tools=tools, add_generation_prompt=prompt))
        wanted = outcome(partial(oracle, chat, tools=tools, add_generation_prompt=prompt, tokenize=False))
        assert found == wanted
        outcomes.add(found)
    assert len([text for kind, text in outcomes if kind == "text"]) >= 2


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_named_templates(tmp_path: Path, theirs: Any, tools: Any) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }}"}]
    ours = required(tmp_path, {**SPECIAL, "chat_template": named})
    wanted = theirs(tmp_path).apply_chat_template([USER], tools=tools, tokenize=False)
    assert ours.render([USER], tools=tools) == wanted


def test_where_the_template_is(tmp_path: Path, theirs: Any) -> None:
    config = {"chat_template": "{{ bos_token }}in the configuration", "bos_token": "<s>"}
    assert required(tmp_path, config).render([USER]) == "<s>in the configuration"
    assert required(tmp_path, config, "in its file").render([USER]) == "in its file"
    assert theirs(tmp_path).apply_chat_template([USER], tokenize=False) == "in its file"
    assert required(tmp_path, None, "alone{{ bos_token }}").render([USER]) == "alone"


def test_a_bundle_without_a_template_says_so(tmp_path: Path) -> None:
    for config in (None, {}, {"chat_template": None}):
        assert ChatTemplate.of(bundle_of(tmp_path, config)) is None
        with pytest.raises(GenerationError, match=rf"^messages: bundle {tmp_path} has no chat template; give a prompt"):
            ChatTemplate.required(bundle_of(tmp_path, config))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ("{", "tokenizer_config.json: not valid JSON"),
        ("[]", "tokenizer_config.json: not a JSON object"),
        ({"chat_template": 3}, "neither text nor named texts"),
        ({"chat_template": [{"name": "default"}]}, "neither text nor named texts"),
        ({"chat_template": [{"name": "other", "template": "x"}]}, "chat templates other, expected one named"),
        ({"chat_template": "{% for %}"}, "the chat template is invalid: "),
        ({"chat_template": "{{ x | nothing }}"}, "No filter named 'nothing'"),
        ({"chat_template": "{% endgeneration %}"}, "the chat template is invalid: "),
        ({"chat_template": "(" + "{{" + "(" * 5000}, "the chat template is invalid: "),
    ],
)
def test_invalid_templates(tmp_path: Path, config: Any, says: str) -> None:
    with pytest.raises(BundleError) as caught:
        ChatTemplate.of(bundle_of(tmp_path, config))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_time_is_the_one_that_is_given(tmp_path: Path) -> None:
    template = required(tmp_path, template="{% macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}{{ day() }}")
    assert template.render([USER], now=datetime(2024, 7, 26)) == "26 Jul 2024"
    assert template.render([USER]) == datetime.now().strftime("%d %b %Y")


HOSTILE = [
    "{{ ''.__class__.__mro__ }}{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ raise_exception.__globals__['__builtins__'] }}{{ raise_exception.__globals__.x }}",
    "{{ strftime_now.__code__.co_filename }}",
    "{{ strftime_now.__closure__[0].cell_contents }}",
    "{{ namespace.__init__.__globals__['json'] }}",
    "{{ dict.__call__.__func__.__globals__['json'] }}",
    "{{ self.__init__.__globals__['x'] }}",
    "{{ (messages | attr('__class__')).__name__ }}",
    "{{ '{0.__class__.__mro__}'.format(1) ~ ('{0.__class__.__mro__}'.format(1)).x.y }}",
    "{% set ns = namespace(__class__=1) %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{% for x in range(100001) %}{% endfor %}",
    "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}",
    "{% for x in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
    "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% set ns = namespace(s='x') %}{% for x in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{% set ns = namespace(n=3) %}{% for x in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ lipsum(n=10 ** 9) }}",
    "{{ 1 / 0 }}",
    "{{ missing.attribute }}",
    "{{ messages[7].content }}",
    "{{ 'a' + 1 }}",
    "{{ raise_exception('two\nlines ' * 1000) }}",
    "{% include 'file' %}",
    "{% import '/etc/passwd' as x %}",
    "{{ strftime_now(3) }}",
    "{{ '%3000000000d' % 1 }}",
    "{{ 'x' | center(3000000000) }}",
    "{{ ('x\n' * 999999) | indent(9999) | length }}",
    "{{ ('x' * 9999999) | replace('x', 'y' * 9999) | length }}",
    "{{ [1] | batch(3000000000, 0) | list }}",
    "{{ ([[1] * 9999] * 9999) | sum(start=[]) | length }}",
    "{{ ([[[1] * 9999] * 9999] * 9) | tojson(indent=99) | length }}",
    "{{ 1.5 | round(3000000000, 'ceil') }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set x = 'x' * 9999999 %}{% set y %}{% for i in range(9999) %}{{ x }}{% endfor %}{% endset %}",
    "{% autoescape 'x' | center(3000000000) %}{{ 1 / 0 }}{% endautoescape %}",
]
ENDLESS = [
    "{{ ('x' * 800000).rfind('x' * 200000 + 'y' + 'x' * 200000) }}",
    "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} }}",
    "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}"
    "{% set ns.y = (ns.y, ns.y) %}{% endfor %}{{ ns.x == ns.y }}",
    "{% for i in range(99999) %}{{ ([i] * 9999999) | sum }}{% endfor %}",
]


@pytest.mark.parametrize("source", HOSTILE)
def test_a_hostile_template_ends_in_one_line(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is rendered, or when it is compiled, where jinja2 evaluates what is constant."""
    monkeypatch.setattr("mxspec.runtime.text.chat.SECONDS", 0.5)
    message = dict(USER)
    with pytest.raises((GenerationError, BundleError), match=r"the chat template (fails|is invalid): .") as caught:
        required(tmp_path, template=source).render([message])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert message == USER


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_has_so_much_time(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxspec.runtime.text.chat.SECONDS", 0.5)
    with pytest.raises((GenerationError, BundleError), match=r": (it takes too much time|more than 0\.5 seconds)$"):
        required(tmp_path, template=source).render([USER])
    assert required(tmp_path, template="{{ 1 + 1 }}").render([USER]) == "2"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].role.center(3000000000) }}",
        "{{ messages[0].role * 10 ** 9 }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = ns.x + ['x' * 9999999 ~ i] %}{% endfor %}",
    ],
)
def test_a_template_has_so_much_memory(tmp_path: Path, source: str) -> None:
    template = required(tmp_path, template=source)
    with pytest.raises(GenerationError, match=r"^messages: the chat template fails: more than 400 MB of memory$"):
        template.render([USER])
    assert required(tmp_path, template="{{ 1 + 1 }}").render([USER]) == "2"


def test_a_template_beyond_all_sizes_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"chat_template\.jinja: got more than 16777216 characters"):
        required(tmp_path, template="x" * ((1 << 24) + 1))


def test_texts_that_are_no_unicode_come_back_as_they_were(tmp_path: Path) -> None:
    template = required(tmp_path, template="{{ messages[0].content }}")
    assert template.render([{"role": "user", "content": "\ud800é"}]) == "\ud800é"


def test_threads_take_turns(tmp_path: Path) -> None:
    template = required(tmp_path, template="{{ messages[0].content * 1000 }}")
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda i: template.render([{"role": "user", "content": f"{i} "}]), range(100)))
    assert texts == [f"{i} " * 1000 for i in range(100)]


def test_a_long_chat_is_far_from_the_limits(tmp_path: Path) -> None:
    chat = [USER, {"role": "assistant", "content": "word " * 2000}] * 1000
    assert len(required(tmp_path, template=TEMPLATES["qwen"]).render(chat)) > 10_000_000
    assert len(required(tmp_path, template=EVERYTHING).render(chat[:200])) > 100_000


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], "at least one message"),
        (None, "at least one message"),
        ("user", "at least one message"),
        ({"role": "user"}, "at least one message"),
        ([["user", "x"]], "number 0 is a list"),
        ([USER, {"content": "x"}], "number 1 has role None"),
        ([{"role": 3, "content": "x"}], "number 0 has role 3"),
        ([{"role": "user", "content": 3}], "number 0 has content 3"),
        ([{"role": "user", "content": b"x"}], "number 0 holds a bytes"),
        ([{"role": "user", "content": [Path("x")]}], "number 0 holds a PosixPath"),
    ],
)
def test_invalid_messages(tmp_path: Path, messages: Any, says: str) -> None:
    with pytest.raises(GenerationError, match=f"^messages: .*{says}"):
        required(tmp_path, template="x").render(messages)


def test_the_template_sees_copies(tmp_path: Path) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "a"}, ("b", 1.5, True, None)]}
    before = json.dumps(message)
    assert "'b', 1.5, True, None" in required(tmp_path, template="{{ messages }}").render([message])
    assert json.dumps(message) == before
