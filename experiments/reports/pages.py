"""The report of a comparison as a Markdown file and as one self-contained HTML file."""

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mqgrad.files import replace_file

from ..sweep.folder import load_config, load_provenance, load_results
from .sections import Figure, Folded, Listing, Part, Section, make_sections
from .tables import Shaded, Table

_TEXT = ' class="text"'
_LONG = 26  # characters from which the cells of a column are broken into lines
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1450px; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { margin-bottom: .2em; } h2 { margin-top: 2em; border-bottom: 2px solid #ddd; }
nav { columns: 3; font-size: 13px; }
.wide { overflow: auto; max-height: 92vh; } img { max-width: 100%; } li { margin: .2em 0; }
details { margin: 1em 0; } summary { cursor: pointer; font-weight: bold; color: #0645ad; }
@media print { .wide { max-height: none; } }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px; }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th { background: #f5f5f5; vertical-align: bottom; white-space: normal; min-width: 3.5em; position: sticky; top: 0; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; }
th:first-child { z-index: 1; } td:first-child { background: white; white-space: nowrap !important; }
.text { text-align: left; white-space: normal; min-width: 12em; }
pre { background: #f5f5f5; padding: 1em; overflow-x: auto; font-size: 12px; }
"""


class ReportFiles(NamedTuple):
    """What :func:`write_report` has written."""

    markdown: Path
    html: Path


def write_report(folder: Path) -> ReportFiles:
    """Write ``report.md`` and ``report.html`` from what a sweep's folder holds so far."""
    config, results = load_config(folder), load_results(folder)
    sections = make_sections(config, results, load_provenance(folder))
    files = ReportFiles(folder / "report.md", folder / "report.html")
    replace_file(files.markdown, _markdown(sections))
    replace_file(files.html, _html(sections))
    return files


def _markdown(sections: Sequence[Section]) -> str:
    parts = []
    for number, section in enumerate(sections):
        parts.append(f"{'#' if number == 0 else '##'} {section.heading}")
        parts += filter(None, map(_part_markdown, section.parts))
    return "\n\n".join(parts) + "\n"


def _part_markdown(part: Part) -> str:
    """Empty of figures: they are in the page."""
    if isinstance(part, Folded):
        inner = "\n\n".join(filter(None, map(_part_markdown, part.parts)))
        is_open = " open" if part.is_open else ""
        return inner and f"<details{is_open}><summary>{part.summary}</summary>\n\n{inner}\n\n</details>"
    if isinstance(part, Figure):
        return ""
    if isinstance(part, Table):
        return _markdown_table(part)
    if isinstance(part, Listing):
        return f"```\n{part.text}\n```"
    return part if isinstance(part, str) else "\n".join(f"- {item}" for item in part)


def _html(sections: Sequence[Section]) -> str:
    title, *others = sections
    links = "".join(
        f'<li><a href="#s{number}">{html.escape(s.heading)}</a></li>' for number, s in enumerate(others)
    )
    parts = [
        f"<h1>{html.escape(title.heading)}</h1>",
        *map(_part_html, title.parts),
        f"<nav><ul>{links}</ul></nav>",
    ]
    for number, section in enumerate(others):
        parts.append(f'<h2 id="s{number}">{html.escape(section.heading)}</h2>')
        parts += map(_part_html, section.parts)
    head = f'<meta charset="utf-8"><title>mqgrad compare</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _part_html(part: Part) -> str:
    if isinstance(part, Folded):
        inner = "\n".join(map(_part_html, part.parts))
        is_open = " open" if part.is_open else ""
        return f"<details{is_open}><summary>{html.escape(part.summary)}</summary>\n{inner}\n</details>"
    if isinstance(part, Table):
        return _html_table(part)
    if isinstance(part, Figure):
        data = base64.b64encode(part.png).decode()
        return f'<img alt="{html.escape(part.description)}" src="data:image/png;base64,{data}">'
    if isinstance(part, Listing):
        return f"<pre>{html.escape(part.text)}</pre>"
    if isinstance(part, str):
        return f"<p>{_emphasized(part)}</p>"
    return "<ul>" + "".join(f"<li>{_emphasized(item)}</li>" for item in part) + "</ul>"


def _emphasized(text: str) -> str:
    """Escaped, with Markdown's stars made into tags."""
    strong = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(text))
    return re.sub(r"\*(.+?)\*", r"<i>\1</i>", strong)


def _markdown_table(table: Table) -> str:
    lines = [table.header, ("---", *["---:"] * (len(table.header) - 1)), *table.rows]
    return "\n".join(
        "| " + " | ".join(_text(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _html_table(table: Table) -> str:
    is_text = [any(len(_text(cell)) > _LONG for cell in column) for column in zip(*table.rows, strict=True)]
    is_text = is_text or [False] * len(table.header)
    head = "".join(map(_html_head, table.header, is_text))
    rows = "\n".join("<tr>" + "".join(map(_html_cell, row, is_text)) + "</tr>" for row in table.rows)
    return f'<div class="wide"><table><tr>{head}</tr>\n{rows}</table></div>'


def _html_head(cell: str, is_text: bool) -> str:
    return f"<th{_TEXT if is_text else ''}>{html.escape(cell)}</th>"


def _html_cell(cell: str | Shaded, is_text: bool) -> str:
    text = _emphasized(_text(cell))
    if isinstance(cell, Shaded):
        return f'<td style="background: {_colour(cell.tone)}">{text}</td>'
    return f"<td{_TEXT if is_text else ''}>{text}</td>"


def _colour(tone: float | None) -> str:
    """Green below 0, red above, grey at 0, yellow of what is not known."""
    if tone is None:
        return "#fff3c4"
    if tone == 0:
        return "#eeeeee"
    return f"hsl({130 if tone < 0 else 5} 60% {97 - 30 * abs(tone):.0f}%)"


def _text(cell: str | Shaded) -> str:
    return cell.text if isinstance(cell, Shaded) else cell
