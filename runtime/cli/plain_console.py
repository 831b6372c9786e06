"""Text of strangers on a terminal: what a manifest, a checkpoint or a template says is shown, and never obeyed."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.text import Text

# C0 and C1 (an ESC moves the cursor, and on some terminals more), and what turns the direction of writing.
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

# Control characters as their pictures (U+2400 on): no text may command a terminal.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """The text with its control characters written out, newlines and tabs excepted."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: str) -> str:
    """The text as a terminal or a page may get it: a character for a character."""
    return text.translate(_PICTURES)


class PlainConsole(Console):
    """A console for which square brackets and colons are what they are: every string it is given is plain text.

    All of rich comes through `render_str`: lines, titles and cells of tables. What is to be styled is given as Text.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """The text without markup and emoji codes, control characters written out."""
        return super().render_str(visible(text), **options | {"markup": False, "emoji": False})
