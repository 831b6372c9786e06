"""Untrusted text on a terminal: text from a manifest, a checkpoint or a template is shown, never obeyed."""

from __future__ import annotations

import re
from typing import Any

from rich.console import Console
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

# C0 and C1 (an ESC moves the cursor, and does more on some terminals), and marks that turn the writing direction.
WIDEST = 1000  # characters of a table's line
_UNSEEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

# Control characters become their pictures (U+2400 on), so that no text commands a terminal.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
_PICTURES |= {0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """The text with its control characters written out, except newlines and tabs."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def shown(text: str) -> str:
    """The text made safe for a terminal or a page, one character for each character."""
    return text.translate(_PICTURES)


class PlainConsole(Console):
    """A console that prints every string as plain text: square brackets and colons have no meaning.

    rich passes all strings through `render_str`: lines, titles and cells of tables. Styled text is given as Text.
    """

    def render_str(self, text: str, **options: Any) -> Text:
        """The text without markup and emoji codes, control characters written out."""
        return super().render_str(visible(text), **options | {"markup": False, "emoji": False})

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich prints, but a table is as wide as its numbers need: one that is cut looks like another number."""
        for table in objects:
            if isinstance(table, Table):
                super().print(Segments(self._uncut(table)), soft_wrap=True, end="")
        others = [one for one in objects if not isinstance(one, Table)]
        if others or not objects:
            super().print(*others, **options)

    def _uncut(self, table: Table) -> list[Segment]:
        numbers = [column for column in table.columns if column.justify == "right" and column.width is None]
        for column in numbers:
            column.no_wrap = True
        words = [word for column in numbers for cell in column.cells for word in visible(str(cell)).split()]
        options = self.options
        while True:
            segments = list(self.render(table, options))
            drawn = "".join(segment.text for segment in segments)
            if all(word in drawn for word in words) or options.max_width > WIDEST:
                return segments
            options = options.update(width=options.max_width + 8)
