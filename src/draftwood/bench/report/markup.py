"""Markup of a page: elements whose text is escaped unless it is markup already.

Text of models and of questions is hostile until it is escaped, so escaping is what happens when nobody thinks of it: only a
`Markup` is taken as it is, and only `element` makes one.
"""

import html
import re
from collections.abc import Iterable

# Not allowed in HTML, and an escape sequence for a terminal that shows the file; line feed and tab are text.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
EMPTY = frozenset({"meta", "br"})  # of HTML; shapes of SVG have an end tag


class Markup(str):
    """Text that is HTML or SVG."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Any text, as text of a page or of an attribute."""
    return text if isinstance(text, Markup) else Markup(html.escape(CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)))


def join(parts: Iterable[str], between: str = "") -> Markup:
    return Markup(between.join(map(escape, parts)))


def element(name: str, *children: str, **attributes: str | float | None) -> Markup:
    """An element. Attributes: `class_` is class, `stroke_width` is stroke-width; None leaves one out."""
    named = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    shown = "".join(f' {key}="{_value(value)}"' for key, value in named)
    return Markup(f"<{name}{shown}>" if name in EMPTY and not children else f"<{name}{shown}>{join(children)}</{name}>")


def _value(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else escape(value)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]], caption: str = "") -> Markup:
    """A table whose first column names its rows; it scrolls by itself where it is wider than the page."""
    head = element("tr", *(element("th", text, scope="col") for text in heads))
    lines = []
    for first, *others in rows:
        lines.append(element("tr", element("th", first, scope="row"), *(element("td", text) for text in others)))
    named = (element("caption", caption),) if caption else ()
    return element("table", *named, element("thead", head), element("tbody", *lines))
