"""The page in a headless Chromium: what it shows is what the API says, it asks nobody else, and anyone can use it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from mxspec.runtime.cli.plain_console import shown
from tests.watched import Watched

from .conftest import Server, Serving

PROMPT = "def read_lines(path):"
GREEDY = {"tab": "compare", "temperature": "0", "max_tokens": "40", "k": "4", "prompt": PROMPT}
HOSTILE = [
    "</script><script>window.hacked = 1</script>",
    '<img src="http://example.invalid/x.png" onerror="window.hacked = 2">',
    "<b onmouseover='window.hacked = 3'>",
    "&amp;{{ 7 * 7 }}",
    "\x1b[31m\0",
    " \n",
    "",
    "😀",
]
RESOURCE = "Failed to load resource"  # what Chromium itself says of every answer that is an error


def expect(what: Any) -> Any:
    """Playwright's, which waits; it is installed where there is a page to wait for."""
    from playwright.sync_api import expect

    return expect(what)


class Page(Watched):
    """The page of a server, once it knows the server's models; shown without replays unless motion is wanted."""

    def __init__(self, browser: Any, server: Server, link: dict[str, str] | None = None, **settings: Any) -> None:
        super().__init__(browser, **{"reduced_motion": "reduce", **settings})
        self.server = server
        self.link = server.url + "/" + ("#" + urlencode(link) if link else "")

    def open(self) -> Page:
        self.page.goto(self.link)
        expect(self.page.locator("#run")).to_be_enabled()
        return self

    def texts(self) -> list[str]:
        found: list[str] = self.page.evaluate("[...document.querySelectorAll('.column .text')].map(t => t.textContent)")
        return found

    def run(self) -> None:
        self.page.click("#run")
        expect(self.page.locator("#verdict p")).to_be_visible()

    def card(self) -> str:
        return str(self.page.locator("#round").inner_text())

    def answer_with(self, path: str, answer: Callable[[Any], None]) -> None:
        """Answer the page's requests to a path here, and not by the server."""
        self.page.route(f"**{path}", answer)


@pytest.fixture(scope="module")
def server(serving: Serving, demo_with_baseline: Path) -> Iterator[Server]:
    with serving(demo_with_baseline) as server:
        yield server


Open = Callable[..., Page]


@pytest.fixture
def open_page(browser: Any, server: Server) -> Iterator[Open]:
    """Opens the page by a link; whatever a test does with it, it complains of nothing and asks its server alone."""
    opened: list[Page] = []

    def open_page(link: dict[str, str] | None = None, **settings: Any) -> Page:
        opened.append(Page(browser, server, link, **settings))
        return opened[-1]

    yield open_page
    for page in opened:
        assert [said for said in page.said if RESOURCE not in said] == []
        assert [url for url in page.asked if not url.startswith((server.url + "/", "data:"))] == []
        assert page.page.evaluate("window.hacked") is None
        page.close()


def stream(server: Server, model: str, own: dict[str, Any], **settings: Any) -> list[Any]:
    """What the API streams for the same prompt; its last chunk has the statistics."""
    given = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, **settings}
    own = {"origins": True, "trace": True, **own}
    chunks = server.post("/v1/completions", {"model": model, "stream": True, "mxspec": own, **given}).events
    assert chunks.pop() == "[DONE]"
    return [chunk["choices"][0] for chunk in chunks]


def text_of(choices: list[Any]) -> str:
    return "".join(choice["text"] for choice in choices)


def tokens_of(choices: list[Any]) -> list[Any]:
    return [token for choice in choices for token in choice["mxspec"].get("tokens", [])]


def sse(*choices: Any) -> bytes:
    """A stream of chunks."""
    lines = [json.dumps({"choices": [choice]}) for choice in choices]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


# --- compare ---


def test_three_columns_are_the_answers_of_the_api_and_the_tick_says_that_two_are_the_same(
    open_page: Open, server: Server
) -> None:
    page = open_page(GREEDY).open()
    page.run()
    plain = {"k": 0, "drafter": "none"}
    expected = [stream(server, "demo-fp16", plain), stream(server, "demo", plain), stream(server, "demo", {"k": 4})]
    assert page.texts() == [shown(text_of(choices)) for choices in expected]
    assert page.texts()[0] != page.texts()[1], "fp16 and MXFP6 write different texts here, or the columns prove little"
    kept = page.page.evaluate(
        "[...document.querySelectorAll('.column')].map(c => "
        "[...c.querySelectorAll('.token')].map(t => t.classList.contains('kept')))"
    )
    assert kept == [[t["origin"] != "target" for t in tokens_of(choices) if t["text"]] for choices in expected]
    assert any(kept[2])
    verdict = page.page.locator("#verdict").inner_text()
    assert "Columns 2 and 3 say the same, token for token" in verdict
    assert "✓" in verdict

    statistics = expected[2][-1]["mxspec"]["statistics"]
    figures = page.page.locator(".column").nth(2).locator("dl").inner_text()
    assert f"{100 * statistics['accepted'] / statistics['evaluated']:.0f} %" in figures
    assert f"{39 / (statistics['rounds'] - 1):.2f}" in figures
    rates = [float(rate) for rate in page.page.locator(".speed > span > b").all_inner_texts() if "×" not in rate]
    over = [float(text.split()[0]) for text in page.page.locator(".over b").all_inner_texts()]
    assert len(rates) == 3
    assert over == pytest.approx([rates[1] / rates[0], rates[2] / rates[0]], abs=0.02, rel=0.02)


def test_columns_that_write_one_after_another_are_replayed_together(open_page: Open) -> None:
    page = open_page(GREEDY | {"order": "alone"}, reduced_motion="no-preference").open()
    progress, again = page.page.locator("#progress"), page.page.locator("#again")
    page.run()
    expect(again).to_have_text("To the end")
    expect(progress).to_contain_text("Replayed together, by the times that were taken")
    columns = page.page.locator(".column")
    for number in (2, 1, 0):
        expect(columns.nth(number).locator(".token").first).to_be_attached()
    assert columns.first.locator(".token").count() < 40, "the first ends before the last begins"
    again.click()
    expect(progress).to_contain_text("Each column had the machine to itself.")
    counts = page.page.locator(".column dl div:last-child dd").all_inner_texts()
    assert counts == ["40", "40", "40"]
    expect(again).to_have_text("Replay")


def test_columns_write_together_where_there_are_cores_for_them(open_page: Open, server: Server) -> None:
    page = open_page(GREEDY)
    models = server.request("GET", "/v1/models").json
    for one in models["data"]:
        one["mxspec"]["cores"] = 12
    page.answer_with("/v1/models", lambda route: route.fulfill(json=models))
    page.open()
    page.page.locator("summary").click()
    page.page.select_option("[name=order]", "")
    expect(page.page.locator("#progress")).to_contain_text("together, live, and share 12 cores")
    page.run()
    expect(page.page.locator("#progress")).to_contain_text("They wrote together and shared 12 cores")
    expect(page.page.locator("#verdict")).to_contain_text("say the same")
    page.page.select_option("[name=order]", "alone")
    expect(page.page.locator("#progress")).to_contain_text("one after another, each with the machine to itself")


def test_the_verdict_on_texts_that_differ(open_page: Open) -> None:
    page = open_page(GREEDY)
    statistics: dict[str, Any] = {}

    def answer(route: Any) -> None:
        if route.request.post_data_json["mxspec"].get("drafter") == "none":
            route.continue_()
        else:
            route.fulfill(body=written(["else"], statistics), content_type="text/event-stream")

    page.answer_with("/v1/completions", answer)
    page.open()
    for seed, verifier, said in (
        (None, "greedy", "differ from token 1 on (greedy), and should not"),
        (7, "match", "differ from token 1 on (seed 7, verifier match), and should not"),
        (7, "mrs", "need not say the same"),
    ):
        statistics |= {"seed": seed, "verifier": verifier, "proposal": "sampled"}
        page.run()
        expect(page.page.locator("#verdict")).to_contain_text(said)
        assert "✓" not in page.page.locator("#verdict").inner_text()


def test_a_speedup_without_a_kept_guess_is_not_speculation_s(open_page: Open) -> None:
    page = open_page(GREEDY)
    guesses: dict[str, Any] = {"seed": None, "verifier": "greedy"}
    body = lambda: written(["a", "b"], guesses)  # noqa: E731
    page.answer_with("/v1/completions", lambda route: route.fulfill(body=body(), content_type="text/event-stream"))
    page.open()
    for more, said in (
        ({"drafted": 0}, "nothing was guessed"),
        ({"drafted": 8, "evaluated": 2}, "no guess was kept"),
        ({"drafted": 8, "evaluated": 2, "accepted": 1}, "1.00 ×"),
    ):
        guesses |= more
        page.run()
        assert said in page.page.locator(".over").nth(2).inner_text()
        assert "1.00 ×" in page.page.locator(".over").nth(1).inner_text(), "the packed model’s own is one"


def written(texts: list[str], statistics: dict[str, Any]) -> bytes:
    """A stream of one round a token, as a server might send it."""
    sums = {"waiting_s": 0.0, "prefill_s": 0.01, "decode_s": 0.1, "decode_tok_per_s": 10.0, "rounds": len(texts)}
    guesses = {"drafted": 0, "evaluated": 0, "accepted": 0}
    chunks: list[Any] = []
    for place, text in enumerate(texts):
        own = {"id": -1 - place, "text": text, "kind": "plain", "draft_p": None, "target_p": 0.5}
        done = {"round": place + 1, "place": place, "k": 0, "why": "fixed", "seconds": 0.1, "drafted": [], "next": own}
        done |= {"draft_s": 0.0, "target_s": 0.1}
        token = {"id": -1 - place, "text": text, "origin": "target" if place % 2 else "model"}
        chunks.append({"text": text, "delta": {"content": text}, "mxspec": {"tokens": [token], "round": done}})
    end = {"text": "", "delta": {}, "finish_reason": "stop"}
    end["mxspec"] = {"finish_reason": "eos", "statistics": sums | guesses | statistics}
    return sse(*chunks, end)


# --- chat, stop, links ---


def test_a_model_without_a_template_continues_the_text(open_page: Open, server: Server) -> None:
    page = open_page({"tab": "chat", "temperature": "0", "max_tokens": "12"}).open().page
    expect(page.locator("#chat-note")).to_contain_text("no chat template")
    answers = page.locator(".turn.written .text")
    page.locator("#said").fill(PROMPT)
    page.keyboard.press("Enter")
    expect(page.locator(".turn.written footer")).to_contain_text("12 tokens")
    first = text_of(stream(server, "demo", {"k": 4}, max_tokens=12))
    assert answers.first.text_content() == shown(first)
    page.click("#send")
    expect(page.locator(".turn.written footer").nth(1)).to_contain_text("12 tokens")
    second = stream(server, "demo", {"k": 4}, prompt=PROMPT + first, max_tokens=12)
    assert answers.nth(1).text_content() == shown(text_of(second))


Bodies = list[Any]
Chat = Callable[..., tuple[Any, Bodies]]


@pytest.fixture
def chat(open_page: Open, server: Server) -> Chat:
    """A chat with a model that has a template and always gives the same answer; and what it was asked."""

    def chat(answer: list[str], **statistics: Any) -> tuple[Any, Bodies]:
        page, bodies = open_page({"tab": "chat", "temperature": "0"}), []
        models = server.request("GET", "/v1/models").json
        models["data"][0]["mxspec"]["chat"] = True
        body = written(answer, {"seed": None, "verifier": "greedy", **statistics})

        def reply(route: Any) -> None:
            bodies.append(route.request.post_data_json)
            route.fulfill(body=body, content_type="text/event-stream")

        page.answer_with("/v1/models", lambda route: route.fulfill(json=models))
        page.answer_with("/v1/chat/completions", reply)
        return page.open().page, bodies

    return chat


def test_a_chat_sends_its_messages_and_its_settings(chat: Chat) -> None:
    page, bodies = chat(["Hello", " there"], seed=5, verifier="mrs", proposal="greedy")
    form = page.locator("#settings-form")
    page.locator("summary").click()
    settings = {"Temperature": "0.7", "Top-p": "0.9", "Top-k": "40", "Min-p": "0.05", "Seed": "5", "Most tokens": "9"}
    for label, value in (settings | {"Stop before": "END\n\\n\\n", "System message": "Be brief."}).items():
        form.get_by_label(label).fill(value)
    for label, value in {"K, guesses": "3", "Drafter": "suffix", "Verifier": "mrs", "Proposal": "greedy"}.items():
        form.get_by_label(label).select_option(value)
    for said in ("Hi", "And now?"):
        page.locator("#said").fill(said)
        page.click("#send")
        expect(page.locator(".turn.written footer").last).to_contain_text("2 tokens")
    own = {"k": 3, "drafter": "suffix", "verifier": "mrs", "proposal": "greedy", "top_k": 40, "min_p": 0.05}
    system, hi = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    hello, now = {"role": "assistant", "content": "Hello there"}, {"role": "user", "content": "And now?"}
    expected = {"model": "demo", "stream": True, "temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 9}
    expected |= {"stop": ["END", "\n\n"], "mxspec": own | {"origins": True, "trace": True}}
    assert bodies == [expected | {"messages": [system, hi]}, expected | {"messages": [system, hi, hello, now]}]

    link = page.url
    page.click("#clear")
    assert page.locator(".turn").count() == 0
    page.goto("about:blank")
    page.goto(link)
    expect(page.locator(".turn")).to_have_count(2)
    assert page.locator("#said").input_value() == "And now?"
    page.click("#send")
    expect(page.locator(".turn.written footer").last).to_contain_text("2 tokens")
    assert bodies[2] == bodies[1], "the link repeats the last answer"


def say(page: Any, text: str) -> None:
    turns = page.locator(".turn.written").count()
    page.locator("#said").fill(text)
    page.keyboard.press("Enter")
    expect(page.locator(".turn.written footer")).to_have_count(turns + 1)
    expect(page.locator("#send")).to_be_enabled()


def asked(bodies: Bodies) -> list[list[str]]:
    return [[message["content"] for message in body["messages"]] for body in bodies]


def test_an_answer_is_formatted_and_shows_its_tokens_on_request(chat: Chat) -> None:
    page, bodies = chat(["Two **bold", "** words\n\n- one\n", "- `two`"])
    say(page, "Hi")
    assert "max_tokens" not in bodies[0], "a chat has no limit but the context"
    answer = page.locator(".turn.written")
    assert answer.locator(".formatted").inner_html() == (
        "<p>Two <strong>bold</strong> words</p><ul><li>one</li><li><code>two</code></li></ul>"
    )
    expect(page.locator("#chat-legend")).to_be_hidden()
    answer.get_by_role("button", name="Tokens").click()
    expect(answer.locator(".formatted")).to_be_hidden()
    expect(page.locator("#chat-legend")).to_be_visible()
    assert answer.locator(".text").text_content() == "Two **bold** words\n\n- one\n- `two`"
    answer.locator(".token").nth(1).focus()
    assert "Round 2 of 3" in page.locator("#round").inner_text()
    answer.get_by_role("button", name="Tokens").click()
    expect(answer.locator(".formatted")).to_be_visible()


def test_messages_are_edited_and_answers_written_again(chat: Chat) -> None:
    page, bodies = chat(["Hello"])
    for said in ("Hi", "And now?"):
        say(page, said)
    page.locator(".turn.written").first.get_by_role("button", name="Write again").click()
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator("#send")).to_be_enabled()
    say(page, "And then?")
    first = page.locator(".turn.said").first
    first.get_by_role("button", name="Edit").click()
    page.keyboard.press("Escape")
    expect(first.locator(".text")).to_have_text("Hi")
    first.get_by_role("button", name="Edit").click()
    first.get_by_label("Your message, changed").fill("Good morning")
    page.keyboard.press("Enter")
    expect(page.locator(".turn")).to_have_count(2)
    expect(page.locator("#send")).to_be_enabled()
    turns = ["Hi", "Hello", "And now?"], ["Hi"], ["Hi", "Hello", "And then?"], ["Good morning"]
    assert asked(bodies) == [["Hi"], *map(list, turns)]
    assert page.locator(".turn.said .text").all_inner_texts() == ["Good morning"]


def test_the_chat_follows_its_answer_until_a_reader_scrolls_up(chat: Chat) -> None:
    page, _ = chat(["a line\n\n"] * 80)
    below = "document.documentElement.scrollHeight - innerHeight - scrollY"

    def await_(condition: str) -> None:  # the page's security policy forbids wait_for_function
        deadline = time.monotonic() + 30
        while not page.evaluate(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.01)

    for _turn in range(2):
        say(page, "Hi")
        await_(f"scrollY > 500 && {below} < 5")
    page.mouse.wheel(0, -900)
    await_(f"{below} > 500")
    page.evaluate("document.querySelector('.formatted').append('more\\n'.repeat(50))")
    assert page.evaluate(below) > 500


def test_stop_ends_the_text_at_the_server_too(open_page: Open, server: Server) -> None:
    slow = {"tab": "chat", "temperature": "0", "max_tokens": "900", "k": "0", "drafter": "none", "said": PROMPT}
    page = open_page(slow).open().page
    written = server.metric("mxspec:generation_tokens_total")
    page.click("#send")
    expect(page.locator(".turn.written .token").nth(3)).to_be_attached()
    page.click("#chat-stop")
    expect(page.locator("#chat-progress")).to_have_text("Stopped.")
    deadline = time.monotonic() + 30
    while server.metric("mxspec:num_requests_running"):
        assert time.monotonic() < deadline, "the text goes on"
        time.sleep(0.01)
    assert server.metric("mxspec:generation_tokens_total") - written < 850
    assert server.metric("mxspec:request_success_total", finished_reason="abort") >= 1
    text = page.locator(".turn.written .text").text_content()
    whole = shown(text_of(stream(server, "demo", {"k": 0, "drafter": "none"}, max_tokens=900)))
    assert whole.startswith(text)
    assert len(text) < len(whole)
    expect(page.locator(".turn.written footer")).to_contain_text("cut off")

    page.locator("#compare-tab").click()
    page.locator("#prompt").fill(PROMPT)
    page.click("#run")
    page.click("#stop")
    expect(page.locator("#progress")).to_have_text("Stopped.")
    expect(page.locator(".column .state").last).to_have_text("not written")


def test_a_link_repeats_a_run_and_its_fragment_stays_in_the_browser(open_page: Open, server: Server) -> None:
    sampled = {"tab": "compare", "temperature": "0.8", "max_tokens": "30", "top_p": "0.95", "k": "3", "prompt": PROMPT}
    page = open_page(sampled).open()
    page.run()
    link, texts = page.page.url, page.texts()
    assert "seed=" in link
    other = open_page()
    other.link = link
    other.open()
    expect(other.page.locator("#progress")).to_contain_text("This link holds a run")
    assert other.texts() == [], "a link alone makes the server write nothing"
    other.run()
    assert other.texts() == texts
    other.page.click("#compare-link")
    expect(other.page.locator("#compare-link")).to_have_text("Copied")
    assert {entry["path"] for entry in server.log()} <= {"/", "/v1/models", "/v1/completions", "/metrics", "/health"}
    assert "seed=" not in "".join(server.lines)


# --- what goes wrong ---


def answers(status: int, message: str, headers: dict[str, str] | None = None) -> Callable[[Any], None]:
    body = {"error": {"message": message, "type": "x", "param": None, "code": None}}
    return lambda route: route.fulfill(status=status, json=body, headers=headers or {})


MISTAKES: list[tuple[Callable[[Any], None], str]] = [
    (lambda route: route.abort("connectionrefused"), "The server does not answer"),
    (answers(400, "k: got 99, expected 0 to 8"), "k: got 99, expected 0 to 8"),
    (lambda route: route.fulfill(status=502, body="<html>"), "The server answers 502"),
    (lambda route: route.fulfill(body=sse({"text": "x"})[:-14]), "broke before the text was whole"),
    (lambda route: route.fulfill(body=b'data: {"error": {"message": "time: 600 s are over"}}\n\n'), "600 s are over"),
]


def test_errors_are_said_in_words_and_can_be_tried_again(open_page: Open) -> None:
    page = open_page(GREEDY | {"max_tokens": "5"}).open()
    alert = page.page.locator("#trouble")
    for answer, said in MISTAKES:
        page.answer_with("/v1/completions", answer)
        page.page.click("#run")
        expect(alert).to_contain_text(said)
        expect(page.page.locator(".column .state").last).to_have_text("not written")
        page.page.unroute("**/v1/completions")
    alert.get_by_role("button", name="Try again").click()
    expect(page.page.locator("#verdict")).to_contain_text("say the same")
    expect(alert).to_be_empty()


def test_a_refusal_of_the_server_is_shown_literally(open_page: Open, server: Server) -> None:
    page = open_page(GREEDY | {"temperature": "0.5", "seed": "1", "verifier": "mrs", "k": "auto"}).open()
    page.page.click("#run")
    message = server.post(
        "/v1/completions",
        {"prompt": PROMPT, "temperature": 0.5, "seed": 1, "mxspec": {"verifier": "mrs", "k": "auto"}},
    ).json["error"]["message"]
    assert "verifier mrs" in message
    expect(page.page.locator("#trouble")).to_contain_text(message)
    expect(page.page.locator("#run")).to_be_enabled()


def test_a_server_that_is_busy_is_asked_again(open_page: Open) -> None:
    page = open_page(GREEDY | {"max_tokens": "5"}).open()
    tries: list[float] = []

    def answer(route: Any) -> None:
        tries.append(time.monotonic())
        if len(tries) == 1:
            answers(503, "server: its queue is full", {"Retry-After": "1"})(route)
        else:
            route.continue_()

    page.answer_with("/v1/completions", answer)
    page.page.click("#run")
    expect(page.page.locator("#progress")).to_contain_text("its queue is full. The page asks again in 1 s.")
    expect(page.page.locator("#verdict")).to_contain_text("say the same")
    assert tries[1] - tries[0] > 0.95
    assert page.page.locator("#trouble").inner_text() == ""


def test_a_key_is_asked_for_and_kept_in_memory_only(open_page: Open, server: Server) -> None:
    page = open_page(GREEDY | {"max_tokens": "5"})

    def answer(route: Any) -> None:
        known = route.request.headers.get("authorization") == "Bearer a-good-key"
        (lambda route: route.continue_() if known else answers(401, "key: got none that is known")(route))(route)

    page.answer_with("/v1/**", answer)
    page.page.goto(page.link)
    dialog = page.page.get_by_role("dialog", name="This server asks for a key")
    expect(dialog).to_be_visible()
    expect(page.page.locator("#key-refusal")).to_be_empty()
    page.page.keyboard.type("a-bad-key")
    page.page.keyboard.press("Enter")
    expect(page.page.locator("#key-refusal")).to_have_text("key: got none that is known")
    page.page.keyboard.press("Escape")
    alert = page.page.locator("#trouble")
    expect(alert).to_contain_text("key: got none that is known")
    alert.get_by_role("button").click()
    page.page.get_by_label("API key").fill("a-good-key")
    page.page.keyboard.press("Enter")
    expect(page.page.locator("#run")).to_be_enabled()
    page.run()
    kept = page.page.evaluate("[{...localStorage}, {...sessionStorage}, document.cookie, location.href]")
    assert "a-good-key" not in json.dumps(kept)


def test_generated_text_is_never_markup(open_page: Open) -> None:
    page = open_page({"tab": "compare", "temperature": "0", "prompt": HOSTILE[0]})
    body = written(HOSTILE, {"seed": None, "verifier": "greedy"})
    page.answer_with("/v1/completions", lambda route: route.fulfill(body=body, content_type="text/event-stream"))
    page.open()
    page.run()
    assert page.texts() == [shown("".join(HOSTILE))] * 3
    for token in page.page.locator(".column").first.locator(".token").all():
        token.focus()
        assert "Round" in page.card()
    page.page.click("#chat-tab")
    page.page.locator("#said").fill(HOSTILE[1])
    page.page.click("#send")
    expect(page.page.locator(".turn.written footer")).to_contain_text("8 tokens")
    assert page.page.locator(".turn.said .text").text_content() == HOSTILE[1]
    assert page.page.locator("img, b[onmouseover]").count() == 0


def test_the_page_may_run_only_its_own_script(server: Server) -> None:
    answer = server.request("GET", "/")
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert re.fullmatch(r"'sha256-[\w+/]{43}=' 'sha256-[\w+/]{43}='", policy["script-src"])
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert not re.search(r"(src|href)=\"(?!#|data:)", answer.body.decode()), "it loads something"


# --- rounds ---


def rounds_of(choices: list[Any]) -> list[Any]:
    return [choice["mxspec"]["round"] for choice in choices if "round" in choice["mxspec"]]


def test_hover_and_focus_show_the_round_of_a_token(open_page: Open, server: Server) -> None:
    page = open_page(GREEDY).open()
    page.run()
    choices = stream(server, "demo", {"k": 4})
    rounds = rounds_of(choices)
    rejecting = next(one for one in rounds[1:] if any(guess["decision"] == "rejected" for guess in one["drafted"]))
    tokens = page.page.locator(".column").nth(2).locator(".token")
    place = rejecting["place"]
    page.page.locator(f".column:nth-child(3) .token[data-place='{place}']").hover()
    rows = page.page.locator("#round tbody tr").all_inner_texts()
    assert len(rows) == len(rejecting["drafted"]) + 1
    fates = {"accepted": "kept", "rejected": "rejected", "discarded": "discarded unread"}
    for row, guess in zip(rows, rejecting["drafted"], strict=False):
        figures = [f"{p:.3f}" if p and p >= 0.001 else None for p in (guess["draft_p"], guess["target_p"])]
        assert all(figure in row for figure in figures if figure)
        assert fates[guess["decision"]] in row
        assert row.split("\t")[0].strip().lstrip("▸ ") == shown(guess["text"]).translate(SIGNS)
    assert "the target’s, instead" in rows[-1]
    assert f"Round {rejecting['round']} of {len(rounds)}" in page.card()
    page.page.mouse.move(1, 1)
    expect(page.page.locator("#round")).to_be_hidden()

    page.page.locator(".column").nth(1).locator(".token").first.focus()
    page.page.keyboard.press("Tab")
    expect(tokens.first).to_be_focused()
    assert "Round 1 of" in page.card()
    assert tokens.first.get_attribute("aria-describedby") == "round"
    page.page.keyboard.press("ArrowDown")
    assert "Round 2 of" in page.card()
    page.page.keyboard.press("ArrowRight")
    expect(tokens.nth(2)).to_be_focused()
    assert tokens.nth(2).get_attribute("aria-selected") == "true"
    page.page.keyboard.press("End")
    assert f"Round {len(rounds)} of" in page.card()
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowUp")
    expect(tokens.first).to_be_focused()
    page.page.keyboard.press("Escape")
    expect(page.page.locator("#round")).to_be_hidden()
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.closest('.text')") is None, "one stop of the Tab key is enough"


SIGNS = {ord("\n"): "↵", ord("\t"): "⇥", ord(" "): "␣"}


# --- for everyone ---

NEEDS_A_NAME = {"button", "textbox", "combobox", "spinbutton", "tab", "tabpanel", "tablist", "listbox", "option"}
NEEDS_A_NAME |= {"article", "dialog", "heading", "list"}
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgba(getComputedStyle(element).backgroundColor);
      if (colour[3] === 255) return colour;
      if (colour[3]) throw new Error("a translucent ground");
    }
    throw new Error("no ground");
  };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(":disabled, .unseen, option")) continue;
    const [one, other] = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    found.push([`${element.tagName}.${element.className} ${element.textContent.slice(0, 20)}`, ratio]);
  }
  return found;
}"""


@pytest.fixture
def whole_page(open_page: Open) -> Callable[..., Page]:
    """The page with everything on it: settings, three columns, an error, and the card of a round."""

    def whole_page(**settings: Any) -> Page:
        page = open_page(GREEDY, **settings).open()
        page.page.locator("summary").click()
        page.run()
        page.answer_with("/v1/completions", answers(400, "a mistake"))
        page.page.click("#chat-tab")
        page.page.locator("#said").fill("x" * 300)
        page.page.click("#send")
        expect(page.page.locator("#trouble")).to_contain_text("a mistake")
        page.page.click("#compare-tab")
        page.page.locator(".column").nth(2).locator(".kept").first.focus()
        expect(page.page.locator("#round")).to_be_visible()
        return page

    return whole_page


def test_text_contrasts_with_its_background(whole_page: Callable[..., Page]) -> None:
    page = whole_page().page
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        contrasts = dict(page.evaluate(CONTRASTS))
        assert len(contrasts) > 60
        assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        grounds.append(sum(ground))
    assert grounds[0] > 600 > 200 > grounds[1]


def test_everything_has_a_name_and_a_place(whole_page: Callable[..., Page]) -> None:
    page = whole_page()
    tree = page.context.new_cdp_session(page.page).send("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in tree if not node.get("ignored")]
    named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in seen if "role" in node}
    roles = {role for role, _ in named}
    assert {"banner", "main", "tabpanel", "tablist", "listbox", "option", "spinbutton", "alert", "status"} <= roles
    assert [role for role, name in named if role in NEEDS_A_NAME - {"list"} and not name.strip()] == []
    ids = page.page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    assert page.page.evaluate("document.querySelectorAll('h1').length") == 1
    assert page.page.evaluate("document.documentElement.lang") == "en"
    text = page.page.locator(".column").nth(2)
    assert text.locator("p.unseen").text_content() == text.locator(".text").text_content(), "in one piece, to be read"
    speaking = page.page.locator("[aria-live], [role=status], [role=alert], [role=log]")
    live = [element.get_attribute("id") for element in speaking.all()]
    assert set(live) == {"trouble", "progress", "verdict", "chat-progress", "spoken"}, "no text that comes is spelled"


def test_tabs_are_moved_by_keys(open_page: Open) -> None:
    page = open_page().open().page
    page.locator("#compare-tab").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#chat-tab")).to_be_focused()
    expect(page.locator("#chat")).to_be_visible()
    expect(page.locator("#compare")).to_be_hidden()
    page.keyboard.press("Home")
    expect(page.locator("#compare")).to_be_visible()
    assert page.locator("#compare-tab").get_attribute("aria-selected") == "true"


def test_a_narrow_phone_scrolls_down_only(whole_page: Callable[..., Page]) -> None:
    page = whole_page(viewport={"width": 320, "height": 640}, has_touch=True, is_mobile=True)
    widths = "[document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert page.page.evaluate(widths) == [320, 320]
    box = page.page.locator("#round").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 320
    page.page.locator("#chat-tab").tap()
    assert page.page.evaluate(widths) == [320, 320]
    page.page.locator("#compare-tab").tap()
    page.page.locator(".column").nth(2).locator(".token").nth(5).tap()
    assert "Round" in page.card()
