"""The nbconvert pieces of an offline report: what happens to cells, outputs and formulas.

Imports nbconvert at the top: reach it through `condnum.report.html`, which names the extra.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor

from condnum.extras import require
from condnum.report.mathml import mathml
from condnum.report.parameters import PARAMETERS_TAG

PLOTLY = "application/vnd.plotly.v1+json"

WIDGET = "application/vnd.jupyter.widget-view+json"
WIDGET_NOTE = "An interactive control: open the notebook to use it."

#: Types that a page without a network cannot show.
_DEAD_TYPES = ("application/javascript", "text/vnd.mermaid")


class ReportPreprocessor(Preprocessor):
    """Takes plotly figures out, leaving numbered slots, and drops what only a live notebook shows.

    The figures go back in after the export: nbconvert parses its whole page once more, which is slow
    for 5 MB of plotly.js and might change it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.figures: list[dict[str, Any]] = []

    def preprocess(self, nb: Any, resources: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Change a copy of the notebook for the page."""
        nb.metadata.pop("widgets", None)
        nb.cells = [cell for cell in nb.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
        for cell in nb.cells:
            if PARAMETERS_TAG in cell.metadata.get("tags", []):
                cell.metadata["condnum_summary"] = "Code: default parameters"
            if "remove-input" in cell.metadata.get("tags", []):
                cell.source = ""
            if "outputs" in cell:
                cell.outputs = [output for output in cell.outputs if self._keep(output)]
        return nb, resources

    def _keep(self, output: Any) -> bool:
        """Reduce one output to a type that the page can show."""
        data = output.get("data")
        if not data:
            return output.output_type in ("stream", "error")
        if PLOTLY in data:
            figure = data[PLOTLY]
            self.figures.append(json.loads(figure) if isinstance(figure, str) else figure)
            data = {"text/html": slot(len(self.figures) - 1)}
        elif WIDGET in data:
            data = {"text/html": f'<p class="note">{WIDGET_NOTE}</p>'}
        elif "text/latex" in data and "text/html" not in data:
            data = {"text/html": formulas(data["text/latex"])}
        else:
            data = {kind: value for kind, value in data.items() if kind not in _DEAD_TYPES}
            if list(data) == ["text/plain"] and len(output.data) > 1:
                return False  # "<IPython.core.display.Javascript object>" tells a reader nothing
        output.data = type(output.data)(data)
        return bool(data)


def slot(number: int) -> str:
    """Return the place holder of a figure."""
    return f'<div class="figure" data-slot="{number}"></div>'


def formulas(latex: str) -> str:
    r"""Convert the text of a LaTeX output, `$…$` or `$$…$$`.

    Examples:
        >>> formulas(r"$\kappa$")
        '<math><mi>κ</mi></math>'
    """
    text = latex.strip()
    display = text.startswith("$$")
    return mathml(text.strip("$").replace(r"\displaystyle", ""), display=display)


class _Renderer(IPythonRenderer):
    """Markdown with formulas as MathML."""

    def inline_math(self, body: str) -> str:
        """Render `$…$`."""
        return mathml(body)

    def block_math(self, body: str) -> str:
        """Render `$$…$$`."""
        return f"{mathml(body, display=True)}\n"


class ReportExporter(HTMLExporter):
    """HTML of a notebook's cells in this package's own template."""

    def __init__(self, **options: Any) -> None:
        template = files("condnum.report").joinpath("cells.html.j2").read_text(encoding="utf-8")
        super().__init__(template_name="basic", raw_template=template, **options)
        self.exclude_anchor_links = True
        self.exclude_input_prompt = True
        self.exclude_output_prompt = True

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Render a Markdown cell."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = _Renderer(escape=False, attachments=attachments, exclude_anchor_links=True)
        return MarkdownWithMath(renderer=renderer).render(source)


def highlight_css() -> str:
    """Return the colours of code, light and dark."""
    formatter = require("pygments.formatters", "notebooks").HtmlFormatter

    def rules(style: str) -> Iterator[str]:
        for line in formatter(style=style).get_style_defs(".highlight").splitlines():
            # Only token colours: backgrounds come from the page.
            if line.startswith(".highlight ."):
                yield re.sub(r"background-color: [^;}]+;? ?", "", line)

    dark = "\n".join(rules("github-dark"))
    return "\n".join(rules("default")) + f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
