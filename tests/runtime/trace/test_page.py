"""The page of a trace, opened in a headless Chromium: it shows the text, obeys nothing in it, and asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mxspec.runtime.cli.plain_console import shown
from mxspec.runtime.events import Token
from mxspec.runtime.trace.collect import Collector
from mxspec.runtime.trace.page import render_page
from tests.watched import Watched

VOCAB = 30
PROMPT = [3, 1, 4, 1, 5]
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '<img src="http://example.invalid/x.png" onerror="window.hacked = 2">',
    "\"><b onmouseover='window.hacked = 3'>",
    "{{ 7 * 7 }}{% raw %}",
    "<!--",
    "&amp;",
    "\x1b[31m\0\r",
    " \n\t ",
    "  ",
    "",
    "שלום\u202eabc",
    "😀",
]


@pytest.fixture(scope="module")
def trace(toys: Any) -> tuple[list[dict[str, Any]], str]:
    """A trace whose tokens are what attackers would like them to be, and the text of its answer."""
    target, other = toys.random_logits(VOCAB, 1), toys.random_logits(VOCAB, 2)
    draft = toys.mixed_logits(other, target, 0.6)
    collector = Collector(lambda token: HOSTILE[token % len(HOSTILE)])
    text = ""
    for event in toys.generate(toys.Session(target), toys.Session(draft), PROMPT, k=4, max_new_tokens=50, traced=True):
        if isinstance(event, Token):
            event = Token(event.id, HOSTILE[event.id % len(HOSTILE)], event.origin)
            text += event.text
        collector.add(event)
    header = {
        "trace": 1,
        "bundle": "<i>bundle</i>",
        "prompt": HOSTILE[0],
        "prompt_tokens": 5,
        "samples": 1,
        "k": 4,
        "drafter": "model",
        "verifier": "greedy",
        "proposal": "sampled",
        "lenience": 1.0,
        "lossless": True,
        "plain_step_s": 0.001,
    }
    return [header, *collector.objects], text


class TracePage(Watched):
    """The page of a trace."""

    def detail(self) -> str:
        return str(self.page.locator("#detail").inner_text())

    def focused(self) -> tuple[str, str]:
        """Round and place of the token that has the focus."""
        found = self.page.evaluate("[document.activeElement.dataset.round, document.activeElement.dataset.place]")
        return found[0], found[1]


@pytest.fixture(scope="module")
def path(trace: tuple[list[dict[str, Any]], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trace.html"
    path.write_text(render_page(trace[0]), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser: Any, path: Path) -> Iterator[TracePage]:
    """Whatever a test does with the page, it complains of nothing and loads nothing but itself."""
    watched = TracePage(browser, path.as_uri())
    yield watched
    assert watched.said == []
    assert watched.asked == [path.as_uri()]
    assert watched.page.evaluate("window.hacked") is None
    watched.close()


class _Texts(HTMLParser):
    """The text inside the answer, and every tag of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.answer = ""
        self._depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "div" and (self._depth or "answer" in (dict(attrs).get("class") or "")):
            self._depth += 1

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag == "div" and self._depth > 0

    def handle_data(self, data: str) -> None:
        if self._depth:
            self.answer += data


def test_the_page_holds_the_answer_as_text_and_not_as_markup(trace: tuple[list[dict[str, Any]], str]) -> None:
    parsed = _Texts()
    parsed.feed(render_page(trace[0]))
    assert parsed.answer.strip(" \n") == shown(trace[1]).strip(" \n")
    assert "img" not in parsed.tags
    assert "49" not in parsed.answer


def test_the_text_of_the_page_is_the_answer(opened: TracePage, trace: tuple[list[dict[str, Any]], str]) -> None:
    assert opened.page.evaluate("document.querySelector('.answer').textContent").strip() == shown(trace[1]).strip()
    origins = opened.page.evaluate(
        "[...document.querySelectorAll('.answer .token')].map(t => t.classList.contains('own'))"
    )
    rounds = [one for one in trace[0] if "round" in one]
    expected = [
        own
        for one in rounds
        for token, own in [*((g, False) for g in one["drafted"] if g["decision"] == "accepted"), (one["next"], True)]
        if token is not None and token["text"]
    ]
    assert origins == expected
    chips = opened.page.locator(".rounds .token").count()
    assert chips == sum(len(one["drafted"]) + (one["next"] is not None) for one in rounds)
    assert opened.page.title() == "Trace of <i>bundle</i>"


def test_keys_move_the_focus_and_the_numbers_follow(opened: TracePage, trace: tuple[list[dict[str, Any]], str]) -> None:
    page = opened.page
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.matches('.answer .token')"):
            break
    assert page.evaluate("document.activeElement.matches('.answer .token')"), "Tab does not reach the answer"
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    first = opened.focused()
    page.keyboard.press("ArrowDown")
    assert int(opened.focused()[0]) > int(first[0])
    page.keyboard.press("ArrowUp")
    assert opened.focused() == first
    page.keyboard.press("End")
    last = opened.focused()
    page.keyboard.press("ArrowRight")
    assert opened.focused() == last, "past the end there is nothing"
    page.keyboard.press("ArrowLeft")
    assert opened.focused() != last
    number, place = map(int, opened.focused())
    found = next(one for one in trace[0] if one.get("round") == number)
    token = found["next"] if place == len(found["drafted"]) else found["drafted"][place]
    assert f"{token['target_p']:.3f}" in opened.detail()
    assert f"round {number} of" in opened.detail()
    page.keyboard.press("Escape")
    assert not page.locator("#detail").is_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('.answer')") is None, "one stop of the Tab key is enough"


def test_pointing_and_tapping_show_the_numbers(opened: TracePage, browser: Any, path: Path) -> None:
    token = opened.page.locator(".rounds .rejected").first
    token.hover()
    assert "rejected" in opened.detail()
    opened.page.mouse.move(1, 1)
    assert not opened.page.locator("#detail").is_visible()
    phone = TracePage(browser, path.as_uri(), has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    phone.page.locator(".answer .token.accepted").first.tap()
    assert "guessed by model, kept" in phone.detail()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 390, "it scrolls sideways"
    assert phone.said == []
    phone.close()


def test_a_screen_reader_finds_named_lists_of_tokens(opened: TracePage) -> None:
    answer = opened.page.locator(".answer").aria_snapshot()
    assert answer.startswith('- listbox "Tokens of the answer"')
    assert '- option "newline' in answer or '- option "space' in answer
    assert 'group "Round 2: ' in opened.page.locator(".rounds").aria_snapshot()
    assert opened.page.locator("#detail").get_attribute("role") == "status"


def test_it_follows_the_readers_light_or_dark_setting(browser: Any, path: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        watched = TracePage(browser, path.as_uri(), color_scheme=scheme)
        colours = watched.page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        grounds.append([sum(map(int, colour[4:-1].split(","))) for colour in colours])
        watched.close()
    (paper, ink), (dark_paper, dark_ink) = grounds
    assert paper > 600 > 200 > ink
    assert dark_ink > 600 > 200 > dark_paper
