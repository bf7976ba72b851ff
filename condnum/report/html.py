"""An executed notebook as one HTML file that works without a network.

Code is folded, plotly.js is written in once, formulas are MathML, and widgets' state is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor

from condnum.errors import require
from condnum.files import write_text
from condnum.report.notebook import PARAMETERS_TAG, first_heading, read_notebook
from condnum.report.tables import mark_words

# TeX formulas as MathML, which browsers draw by themselves: reports need no script from a network.


def _table(text: str) -> dict[str, str]:
    """Read pairs of a command's name and its character."""
    return dict(re.findall(r"(\S+) (\S+)", text))


_GREEK = _table(
    """
    alpha α  beta β  gamma γ  delta δ  epsilon ϵ  zeta ζ  eta η  theta θ  iota ι  kappa κ  lambda λ  mu μ
    nu ν  xi ξ  pi π  rho ρ  sigma σ  tau τ  upsilon υ  phi ϕ  chi χ  psi ψ  omega ω  varepsilon ε
    vartheta ϑ  varphi φ  varrho ϱ  Gamma Γ  Delta Δ  Theta Θ  Lambda Λ  Xi Ξ  Pi Π  Sigma Σ  Phi Φ  Psi Ψ
    Omega Ω  ell ℓ  infty ∞  partial ∂  nabla ∇  emptyset ∅  varnothing ∅  Re ℜ  hbar ℏ
    """
)
_OPERATORS = _table(
    """
    cdot ⋅  times ×  le ≤  leq ≤  ge ≥  geq ≥  ne ≠  neq ≠  approx ≈  sim ∼  simeq ≃  equiv ≡  propto ∝
    in ∈  notin ∉  subset ⊂  subseteq ⊆  cup ∪  cap ∩  to →  rightarrow →  leftarrow ←  Rightarrow ⇒
    Leftrightarrow ⇔  iff ⇔  mapsto ↦  pm ±  mp ∓  ll ≪  gg ≫  succeq ⪰  preceq ⪯  succ ≻  prec ≺  dots …
    ldots …  cdots ⋯  vdots ⋮  mid ∣  parallel ∥  perp ⊥  top ⊤  circ ∘  odot ⊙  otimes ⊗  oplus ⊕  forall ∀
    exists ∃  lVert ‖  rVert ‖  Vert ‖  lvert |  rvert |  vert |  langle ⟨  rangle ⟩  lfloor ⌊  rfloor ⌋
    lceil ⌈  rceil ⌉  star ⋆  dagger †  setminus ∖  colon :  ast ∗  prime ′  uparrow ↑  downarrow ↓  gets ←
    land ∧  lor ∨  neg ¬  div ÷  | ‖  { {  } }  % %  # #  & &  _ _  $ $
    """
)
_LARGE = {"sum": "∑", "prod": "∏", "int": "∫", "bigcup": "⋃", "bigcap": "⋂", "bigoplus": "⨁"}
_LIMITS = {"max", "min", "sup", "inf", "lim", "argmin", "argmax"}
_FUNCTIONS = {"log", "exp", "ln", "det", "dim", "ker", "sin", "cos", "tan", "deg", "gcd", "Pr", *_LIMITS}
_ACCENTS = {
    "hat": "^", "widehat": "^", "tilde": "~", "widetilde": "~", "bar": "¯", "overline": "¯",
    "vec": "→", "dot": "˙", "ddot": "¨",
}  # fmt: skip
_SPACES = {",": 0.17, ":": 0.22, ">": 0.22, ";": 0.28, " ": 0.25, "quad": 1, "qquad": 2, "!": 0}  # em
_SIZES = {"big", "Big", "bigl", "bigr", "Bigl", "Bigr", "displaystyle", "textstyle", "limits", "nolimits"}
_TEXT = {"text", "mathrm", "textrm", "operatorname", "mathtt", "mathsf", "textit"}
_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|\d+(?:\.\d+)?|\s+|.", re.DOTALL)


class _UnsupportedError(Exception):
    """The formula uses something that this converter does not know."""


def mathml(tex: str, *, display: bool = False) -> str:
    r"""Convert a formula, without its dollar signs, to HTML.

    Examples:
        >>> mathml(r"\sigma_1")
        '<math><msub><mi>σ</mi><mn>1</mn></msub></math>'
        >>> mathml(r"\unknown{x}")
        '<code class="tex">\\unknown{x}</code>'
    """
    try:
        parser = _Parser(tex, display)
        body = parser.row(end=None)
    except (_UnsupportedError, IndexError):
        return f'<code class="tex">{escape(tex.strip())}</code>'
    return f'<math display="block">{body}</math>' if display else f"<math>{body}</math>"


class _Parser:
    """A recursive descent over TeX tokens; every method returns MathML text."""

    def __init__(self, tex: str, display: bool) -> None:
        self.tokens = _TOKEN.findall(tex)
        self.position = 0
        self.display = display

    def peek(self) -> str | None:
        """Return the next token that is not white space, without taking it."""
        while self.position < len(self.tokens) and self.tokens[self.position].isspace():
            self.position += 1
        return self.tokens[self.position] if self.position < len(self.tokens) else None

    def take(self) -> str:
        """Take the next token; an unfinished formula raises `IndexError`."""
        if self.peek() is None:
            raise IndexError
        self.position += 1
        return self.tokens[self.position - 1]

    def row(self, end: str | None) -> str:
        """Read items up to the closing token."""
        parts = []
        while self.peek() != end:
            parts.append(self.scripted())
        if end is not None:
            self.take()
        return "".join(parts)

    def scripted(self) -> str:
        """Read an atom with its sub- and superscripts and primes."""
        limits = self.display and (self.peek() or "")[1:] in {*_LARGE, *_LIMITS}
        base, below, above, primes = self.atom(), "", "", ""
        while (token := self.peek()) in ("_", "^", "'"):
            self.take()
            if token == "_" and not below:
                below = self.atom()
            elif token == "^" and not above:
                above = self.atom()
            elif token == "'":
                primes += "<mo>′</mo>"
            else:
                raise _UnsupportedError
        if primes:
            above = f"<mrow>{primes}{above}</mrow>"
        if not (below or above):
            return base
        name = ("under" if limits else "sub") * bool(below) + ("over" if limits else "sup") * bool(above)
        return f"<m{name}>{base}{below}{above}</m{name}>"

    def atom(self) -> str:
        """Read one symbol, group or command."""
        token = self.take()
        if token == "{":
            return f"<mrow>{self.row('}')}</mrow>"
        if token.startswith("\\"):
            return self.command(token[1:])
        if token in ("}", "^", "_", "&", "$"):
            raise _UnsupportedError
        if token[0].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{token}</mi>"
        return f"<mo>{escape({'-': '−', '*': '∗', '~': ' '}.get(token, token))}</mo>"

    def command(self, name: str) -> str:
        """Read what follows a command's name."""
        if name in _GREEK:
            return f"<mi>{_GREEK[name]}</mi>"
        if name in _OPERATORS:
            return f"<mo>{escape(_OPERATORS[name])}</mo>"
        if name in _LARGE:
            return f"<mo>{_LARGE[name]}</mo>"
        if name in _FUNCTIONS:
            return f'<mi mathvariant="normal">{name}</mi>'
        if name in _SPACES:
            return f'<mspace width="{_SPACES[name]}em"/>'
        if name in _ACCENTS:
            return f'<mover accent="true">{self.atom()}<mo>{_ACCENTS[name]}</mo></mover>'
        if name in ("frac", "tfrac", "dfrac"):
            return f"<mfrac>{self.atom()}{self.atom()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.atom()}</msqrt>"
        if name.rstrip("*") in _TEXT:
            kind = "mtext" if name.startswith("text") else "mi"
            return f'<{kind} mathvariant="normal">{escape(self.text())}</{kind}>'
        if name in ("mathbf", "boldsymbol", "bm", "textbf"):
            return f'<mrow style="font-weight:bold">{self.atom()}</mrow>'
        if name in ("mathbb", "mathcal"):
            return f"<mi>{''.join(_letter(name, letter) for letter in self.text())}</mi>"
        if name in ("left", "right"):
            fence = self.take()
            sign = _OPERATORS.get(fence[1:], "") if fence.startswith("\\") else fence.replace(".", "")
            return f'<mo fence="true" stretchy="true">{escape(sign)}</mo>'
        if name in _SIZES:
            return ""
        raise _UnsupportedError

    def text(self) -> str:
        """Read a braced argument, or one token, literally."""
        if self.take() != "{":
            return self.tokens[self.position - 1]
        end = self.tokens.index("}", self.position) if "}" in self.tokens[self.position :] else None
        if end is None or any(word.startswith(("\\", "{")) for word in self.tokens[self.position : end]):
            raise _UnsupportedError
        words, self.position = self.tokens[self.position : end], end + 1
        return "".join(words)


def _letter(alphabet: str, letter: str) -> str:
    """Return a capital in double-struck or script form; Unicode keeps the oldest ones elsewhere."""
    if not ("A" <= letter <= "Z"):
        raise _UnsupportedError
    old = {"mathbb": dict(zip("CHNPQRZ", "ℂℍℕℙℚℝℤ", strict=True))}.get(
        alphabet, dict(zip("BEFHILMR", "ℬℰℱℋℐℒℳℛ", strict=True))
    )
    start = 0x1D538 if alphabet == "mathbb" else 0x1D49C
    return old.get(letter, chr(start + ord(letter) - ord("A")))


# The nbconvert pieces of an offline report: what happens to cells, outputs and formulas.


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


# Making sure that a page loads nothing from a network.


#: Elements and the attribute through which they load something.
_LOADERS = {
    "script": "src", "link": "href", "img": "src", "iframe": "src", "video": "src", "audio": "src",
    "source": "src", "embed": "src", "object": "data", "track": "src", "input": "src", "image": "href",
    "use": "href", "frame": "src",
}  # fmt: skip
_REMOTE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_CSS_REMOTE = re.compile(r"@import\s+[^;]*//[^;]*;?|url\(\s*['\"]?(?:[a-z]+:)?//[^)]*\)", re.IGNORECASE)


def remove_remote(soup: Any) -> None:
    """Remove everything that a browser would fetch from elsewhere; ordinary links stay.

    A remote picture becomes a link to it. Scripts that import a remote module go as a whole.

    Examples:
        >>> from bs4 import BeautifulSoup
        >>> page = BeautifulSoup('<p>a<script src="//example.org/a.js"></script></p>', "html.parser")
        >>> remove_remote(page)
        >>> str(page)
        '<p>a</p>'
    """
    for name, attribute in _LOADERS.items():
        for element in soup.find_all(name):
            if _REMOTE.match(_address(element, attribute)):
                _replace(soup, element, _address(element, attribute))
    for element in soup.find_all(attrs={"srcset": True}):
        if "//" in element["srcset"]:
            del element["srcset"]
    for element in soup.find_all("script"):
        if re.search(r"\bimport\b[^;]*['\"](?:[a-z]+:)?//", element.get_text(), re.IGNORECASE):
            element.decompose()
    for element in soup.find_all("style"):
        element.string = _CSS_REMOTE.sub("", element.get_text())
    for element in soup.find_all(style=True):
        element["style"] = _CSS_REMOTE.sub("", element["style"])


def _address(element: Any, attribute: str) -> str:
    """Return where an element loads from, or an empty text."""
    return str(element.get(attribute) or element.get(f"xlink:{attribute}") or "")


def _replace(soup: Any, element: Any, address: str) -> None:
    """Remove an element; a picture leaves a link behind."""
    if element.name != "img":
        element.decompose()
        return
    link = soup.new_tag("a", href=address)
    link.string = element.get("alt") or address
    element.replace_with(link)


#: Figures follow the window's width; plotly's button that uploads a chart to its cloud is off.
FIGURE_CONFIG = {"responsive": True, "displaylogo": False, "showSendToCloud": False}

#: Height of a figure whose layout gives none.
FIGURE_HEIGHT = "450px"

#: Figures keep the colours that they were drawn with; the site draws its own anew.
_LIGHT_FIGURES = ".figure { background: #fff; color-scheme: light; }"

_SLOT = re.compile(r'<div class="figure" data-slot="(\d+)">\s*</div>')


@dataclass(frozen=True)
class NotebookBody:
    """What a page shows of an executed notebook; any shell can be put around it."""

    title: str
    has_heading: bool  # the cells begin with a heading of the first level
    html: str  # the cells, with a slot where each figure goes
    figures: tuple[Mapping[str, Any], ...]  # plotly's data and layout, by the number of the slot
    parameters: Mapping[str, Any]  # of the run
    footer: str  # which condnum, and when


def export_html(
    notebook_path: str | os.PathLike[str], html_path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write an executed notebook as one self-contained HTML page."""
    require("nbconvert", "notebooks")
    path = Path(notebook_path)
    return write_text(html_path, render_html(read_notebook(path), title=title, name=path.stem))


def render_html(notebook: Any, *, title: str | None = None, name: str = "report") -> str:
    """Return an executed notebook as one self-contained HTML page."""
    body = notebook_body(notebook, title=title, name=name)
    template = (
        require("jinja2", "notebooks").Environment(autoescape=True).from_string(read_asset("report.html.j2"))
    )
    site = files("condnum.report").joinpath("assets", "site.css").read_text(encoding="utf-8")
    soup = require("bs4", "notebooks").BeautifulSoup(body.html, "html.parser")
    headings = soup.find_all("h2")
    for number, heading in enumerate(headings):
        heading["id"] = re.sub(r"\W+", "-", heading.get_text()).strip("-") or f"part-{number}"
    contents = [(heading["id"], heading.get_text()) for heading in headings]
    page = template.render(
        body=body, html=str(soup), contents=contents, css=f"{report_css()}\n{site}\n{_LIGHT_FIGURES}"
    )
    return _with_figures(page, body.figures)


def notebook_body(notebook: Any, *, title: str | None = None, name: str = "report") -> NotebookBody:
    """Convert the cells of an executed notebook: folded code, MathML, nothing from a network."""
    require("nbconvert", "notebooks")

    heading = first_heading(notebook)
    preprocessor = ReportPreprocessor(enabled=True)
    cells, _ = ReportExporter(preprocessors=[preprocessor]).from_notebook_node(notebook)
    soup = require("bs4", "notebooks").BeautifulSoup(cells, "html.parser")
    remove_remote(soup)
    mark_words(soup)
    return NotebookBody(
        title=title or heading or name,
        has_heading=heading is not None,
        html=str(soup),
        figures=tuple(preprocessor.figures),
        parameters=_parameters(notebook),
        footer=_footer(notebook),
    )


def fill_slots(page: str, drawn: Sequence[str]) -> str:
    """Put figures into their slots.

    Examples:
        >>> fill_slots('a <div class="figure" data-slot="0"></div>', ["<b>figure</b>"])
        'a <b>figure</b>'
    """
    return _SLOT.sub(lambda match: drawn[int(match.group(1))], page)


def report_css() -> str:
    """Return the style of a report: layout, tables, code in colours, light and dark."""
    return f"{read_asset('report.css')}\n{highlight_css()}"


def read_asset(name: str) -> str:
    """Return a file of this package as text."""
    return files("condnum.report").joinpath(name).read_text(encoding="utf-8")


def _parameters(notebook: Any) -> dict[str, Any]:
    """Return the parameters that a run used, as the runner or else papermill recorded them."""
    known = notebook.metadata.get("condnum", {}).get("parameters")
    return dict(known or notebook.metadata.get("papermill", {}).get("parameters", {}))


def _footer(notebook: Any) -> str:
    """Return one line: which condnum, and when."""
    started = str(notebook.metadata.get("papermill", {}).get("start_time", ""))[:19].replace("T", " ")
    return f"condnum {metadata.version('condnum')}" + (f", run on {started} UTC" if started else "")


def _with_figures(page: str, figures: Sequence[Mapping[str, Any]]) -> str:
    """Put the figures into their slots, and plotly.js once in front of the first."""
    if not figures:
        return page
    plotly_io = require("plotly.io", "viz")

    def drawn(number: int) -> str:
        html = plotly_io.to_html(
            dict(figures[number]),
            full_html=False,
            include_plotlyjs=number == 0,
            config=FIGURE_CONFIG,
            default_height=FIGURE_HEIGHT,
            validate=False,
            div_id=f"figure-{number}",
        )
        least = 760 if "xaxis2" in figures[number].get("layout", {}) else 300  # panels side by side scroll
        return f'<div class="figure"><div style="min-width:{least}px">{html}</div></div>'

    return fill_slots(page, [drawn(number) for number in range(len(figures))])
