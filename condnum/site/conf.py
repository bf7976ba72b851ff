"""Sphinx's configuration of the site: formulas offline, figures' scripts where there are figures."""

import re
from typing import Any

from docutils import nodes

from condnum.page.html import mathml
from condnum.page.tables import INDEX

project = "condnum"
html_title = "condnum"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_static_path = ["_static"]
exclude_patterns = ["_static", "jupyter_execute"]
html_css_files = ["explore.css", "cards.css", "math.css", "site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_search_summary = False  # it would fetch each page, which file:// forbids
html_show_sourcelink = False
html_show_copyright = False
html_use_index = False
pygments_style = "a11y-high-contrast-light"
myst_enable_extensions = ["dollarmath", "deflist", "attrs_inline", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"  # formulas in outputs too
nb_code_prompt_show = "Code"
nb_code_prompt_hide = "Code"
napoleon_use_ivar = True  # else fields of a class that it describes appear twice
default_role = "code"  # as the docstrings use single backticks
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
suppress_warnings = ["config.cache", "mystnb.unknown_mime_type"]

#: Scripts, in their order, of a page on which something of a class is.
_FIGURES = ("plotly.min.js", "paint.js", "frames.js", "explore.js", "record.js", "site.js")
SCRIPTS = {"plot-frame": _FIGURES, "condnum-recorded": _FIGURES, "condnum-grab": ("grab.js",)}


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer of formulas, and the choice of scripts."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("doctree-resolved", _indices)
    app.connect("html-page-context", _page_scripts)
    app.connect("autodoc-skip-member", _skipped)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _inline(writer: Any, node: Any) -> None:
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def _display(writer: Any, node: Any) -> None:
    writer.body.append(f'<div class="math" tabindex="0">{mathml(node.astext(), display=True)}</div>\n')
    raise nodes.SkipNode


def _indices(app: Any, doctree: Any, name: str) -> None:
    """Write D_P of running text with its index; a docstring's names stay as they are typed."""
    for text in [] if name.startswith("api/") else list(doctree.findall(nodes.Text)):
        if isinstance(text.parent, nodes.literal | nodes.FixedTextElement | nodes.math | nodes.math_block):
            continue
        before, *parts = INDEX.split(text)
        found: list[Any] = [nodes.Text(before)]
        for letter, index, after in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            found += [nodes.Text(letter), nodes.subscript("", index), nodes.Text(after)]
        if parts:
            text.parent.replace(text, found)


def _page_scripts(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    body = context.get("body", "")
    wanted = [scripts for name, scripts in SCRIPTS.items() if f'class="{name}"' in body]
    for script in dict.fromkeys(name for scripts in wanted for name in scripts):
        app.add_js_file(script, loading_method="defer")


def _skipped(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to estimators for the routing of metadata."""
    return True if re.fullmatch(r"set_\w+_request", name) else None
