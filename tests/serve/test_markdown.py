"""The page's Markdown in a headless Chromium: what becomes an element, and that nothing else ever does."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mxspec.serve.routes.page import FOLDER
from tests.watched import Watched

RENDERED = [
    ("a\nb\n\nc", "<p>a\nb</p><p>c</p>"),
    ("# One #\n###### Six", "<h3>One</h3><h6>Six</h6>"),
    ("*a* _b_ **c *d*** ~~e~~", "<p><em>a</em> <em>b</em> <strong>c <em>d</em></strong> <s>e</s></p>"),
    ("snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"),
    (r"`a*b*` ``c`d`` \*e\*", "<p><code>a*b*</code> <code>c`d</code> *e*</p>"),
    ("```py\n# no\n\n*x*\n```\nz", '<pre data-language="py"><code># no\n\n*x*</code></pre><p>z</p>'),
    ("```\nnot closed", "<pre><code>not closed</code></pre>"),
    ("- a\n  - b\n- c\n\nd", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul><p>d</p>"),
    ("3. a\n4. b\n   more", '<ol start="3"><li>a</li><li>b\nmore</li></ol>'),
    ("> a\n> - b", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>"),
    ("|a|\n|-|\n|*1*|", "<div><table><tr><th>a</th></tr><tr><td><em>1</em></td></tr></table></div>"),
    ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    ("[a](http://b/c_)", '<p><a href="http://b/c_" rel="noopener noreferrer nofollow" target="_blank">a</a></p>'),
    ("[a](javascript:alert) ![b](http://c/d.png)", "<p>[a](javascript:alert) ![b](http://c/d.png)</p>"),
    ("<b>&amp;</b> {{7*7}}", "<p>&lt;b&gt;&amp;amp;&lt;/b&gt; {{7*7}}</p>"),
]
HOSTILE = ["</script><script>window.hacked = 1</script>", "<img src=x onerror='window.hacked = 2'>", "javascript:x"]
ELEMENTS = {"p", "strong", "em", "s", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "a", "div", "table", "tr"}
ELEMENTS |= {"th", "td", "h3", "h4", "h5", "h6"}
ATTRIBUTES = {"start", "rel", "target", "data-language", "href of http", "href of https", "href of mailto"}

# Renders texts as they stream in, the latter half of each a character at a time.
RENDER = """texts => texts.map((text) => {
  const made = document.createElement("div");
  const half = Math.max(text.length >> 1, text.length - 300);
  for (let end = half; end <= text.length; end += 1) Markdown.render(made, text.slice(0, end));
  return made.innerHTML;
})"""
LOOK = """texts => {
  const found = new Set();
  const made = document.body.appendChild(document.createElement("div"));
  for (const text of texts) {
    const began = performance.now();
    Markdown.render(made, text);
    if (performance.now() - began > 5000) found.add(`slow: ${text.slice(0, 20)}`);
    for (const one of made.querySelectorAll("*")) {
      found.add(one.localName);
      for (const { name } of one.attributes) found.add(name === "href" ? `href of ${one.href.split(":")[0]}` : name);
    }
  }
  return [...found];
}"""


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    watched = Watched(browser, "about:blank")
    watched.page.add_script_tag(content=Path(FOLDER / "markdown.js").read_text())
    yield watched.page
    assert (watched.said, watched.asked[1:]) == ([], [])
    assert watched.page.evaluate("window.hacked") is None
    watched.close()


def test_markdown_becomes_elements_whole_or_as_it_streams_in(page: Any) -> None:
    texts = [text for text, _ in RENDERED]
    assert list(zip(texts, page.evaluate(RENDER, texts), strict=True)) == RENDERED
    assert page.evaluate(RENDER, ["\n\n".join(texts[:6])]) == ["".join(made for _, made in RENDERED[:6])]


def test_a_hostile_text_makes_no_other_elements_and_ends(page: Any) -> None:
    chance = random.Random(5)
    parts = [*HOSTILE, *"*_`~[]()!>#|-\\\n \t1.", "**", "```", "\n\n", "[a](", "http://x", "- ", "> ", "|-|"]
    texts = ["".join(chance.choices(parts, k=chance.randrange(60))) for _ in range(400)]
    texts += [
        part * 30_000 for part in ("*", "_a", "`", "[", "> ", "- ", "|a", "**a ", "\\", "(", "~~", "- a\n", "\n|-")
    ]
    assert set(page.evaluate(LOOK, texts)) - ELEMENTS - ATTRIBUTES == set()
