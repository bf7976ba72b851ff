"""A live plotly figure, the picture that its cell keeps, and errands in the reader's browser."""

import html
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from condnum.errors import CondnumError, require
from condnum.figures.style import apply_theme, honest_legend, stacked

traitlets = require("traitlets", "notebooks")
ipywidgets = require("ipywidgets", "notebooks")
AnyWidget: Any = require("anywidget", "notebooks").AnyWidget
go = require("plotly.graph_objects", "notebooks")

#: CSS classes of the boxes whose figures the courier fits to the page: with controls, and without.
EXPLORER_CLASS, FIGURE_CLASS = "condnum-explorer", "condnum-figure"

_SCRIPT = """
function initialize({ model }) {
  const body = document.body;
  const tellTheme = () => {
    const dark = body.dataset.jpThemeLight === "false";
    if (model.get("dark") !== dark) { model.set("dark", dark); model.save_changes(); }
  };
  const watch = new MutationObserver(tellTheme);
  watch.observe(body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  tellTheme();
  model.on("msg:custom", (message, buffers) => {
    if (message.kind === "copy") {
      Promise.resolve()
        .then(() => navigator.clipboard.writeText(message.text))
        .then(() => model.send({ copied: true }), () => model.send({ copied: false }));
    }
    if (message.kind === "download") {
      const link = document.createElement("a");
      const url = URL.createObjectURL(new Blob([buffers[0]], { type: message.type }));
      link.href = url;
      link.download = message.name;
      body.append(link);
      link.click();
      link.remove();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    }
  });
  return () => watch.disconnect();
}
// ipywidgets labels neither the handle of a slider nor the buttons of a player, and gives a tooltip to the
// label of some widgets only.
function label(box, tips) {
  for (const widget of box.querySelectorAll(".widget-hslider, .widget-dropdown, .widget-text")) {
    const text = widget.querySelector("label")?.textContent || "";
    if (tips[text] && !widget.title) widget.title = tips[text];
    const row = widget.closest(".widget-hbox:has(> .widget-hslider)");
    const told = text || row?.querySelector(".widget-hslider label")?.textContent || "";
    for (const part of widget.querySelectorAll(".noUi-handle, select, input"))
      if (told && !part.ariaLabel) part.ariaLabel = told;
  }
  for (const player of box.querySelectorAll(".widget-play"))
    Array.from(player.querySelectorAll("button")).forEach((button, index) => {
      const told = ["Play or pause", "Stop and go back", "Repeat"][index];
      if (told && !button.ariaLabel) { button.ariaLabel = told; button.title = told; }
    });
}
function render({ model, el }) {
  // Plotly draws at 700 pixels where the page has no width yet, and then follows the window alone. A figure
  // that is not drawn yet loses messages: the kernel hears of a narrow window only then.
  const fit = () => {
    const around = el.closest("EXPLORER");
    if (!around) return;
    label(around, model.get("tips"));
    const plots = Array.from(around.querySelectorAll(".js-plotly-plot"));
    if (plots.some((plot) => plot._fullLayout && plot.clientWidth > 0
      && Math.abs(plot._fullLayout.width - plot.clientWidth) > 1)) window.dispatchEvent(new Event("resize"));
    const narrow = window.matchMedia("(max-width: 700px)").matches;
    if (plots.length && plots.every((plot) => plot._fullLayout && plot.data?.length)
      && model.get("narrow") !== narrow) { model.set("narrow", narrow); model.save_changes(); }
  };
  const watch = new ResizeObserver(fit), timer = setInterval(fit, 1000);
  const box = el.closest("EXPLORER");
  if (box) watch.observe(box);
  else requestAnimationFrame(() => watch.observe(el.closest("EXPLORER") ?? el));
  return () => { watch.disconnect(); clearInterval(timer); };
}
export default { initialize, render };
""".replace("EXPLORER", f":is(.{EXPLORER_CLASS}, .{FIGURE_CLASS})")
#: The picture that a cell keeps shows only where the live figure before it does not.
_STYLE = """
.jp-OutputArea-child:has(EXPLORER) + .jp-OutputArea-child:has(.jp-RenderedPlotly) { display: none; }
""".replace("EXPLORER", f":is(.{EXPLORER_CLASS}, .{FIGURE_CLASS})")


class Courier(AnyWidget):
    """Downloads, the clipboard, the page's theme and the width of figures; placed among a box's children."""

    _esm, _css = _SCRIPT, _STYLE
    dark = traitlets.Bool(False).tag(sync=True)
    narrow = traitlets.Bool(False).tag(sync=True)
    tips = traitlets.Dict().tag(sync=True)  # help of each control, by its description


def figure_widget(figure: Any) -> Any:
    """Return a live figure that follows the width of its place."""
    widget = go.FigureWidget(figure)
    widget._config = widget._config | {"responsive": True, "displaylogo": False}
    return widget


def redraw(widget: Any, figure: Any) -> None:
    """Show another figure of the same make-up in a widget of `figure_widget`.

    The data are changed in place, in one message to the page: nothing flickers, and the reader's zoom
    and hidden legend entries stay.
    """
    for axis in (*figure.select_xaxes({"domain": None}), *figure.select_yaxes({"domain": None})):
        axis.domain = (0, 1)  # else it keeps the one that it has below other panels
    with widget.batch_update():
        for old, new in zip(widget.data, figure.data, strict=True):
            old.update(_changed(old, new), overwrite=False)
        widget.layout.update(_changed(widget.layout, figure.layout))


def _changed(old: Any, new: Any) -> dict[str, Any]:
    """Return what differs at the first level: plotly checks all that it is given, entry by entry."""
    before = old.to_plotly_json()
    after = new.to_plotly_json().items()
    return {name: value for name, value in after if name not in before or not _same(before[name], value)}


def _same(old: Any, new: Any) -> bool:
    """Compare two properties; arrays with gaps (NaN) are equal where both have one."""
    if isinstance(old, np.ndarray) or isinstance(new, np.ndarray):
        numeric = all(np.asarray(values).dtype.kind in "fiu" for values in (old, new))
        return bool(np.array_equal(old, new, equal_nan=numeric))
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    return bool(old == new)


def shown_figure(figure: Any, *, static: bool = False) -> Any:
    """Return a figure without controls that follows the page's theme and width, or with `static` as it is."""
    honest_legend(figure)
    if static:
        return figure
    view, source, guide = figure_widget(figure), go.Figure(figure), Courier()

    def draw(_: Any) -> None:
        fresh = go.Figure(source)
        redraw(view, apply_theme(stacked(fresh) if guide.narrow else fresh, dark=guide.dark))

    guide.observe(draw, ["dark", "narrow"])
    box = ipywidgets.VBox([view, guide]).add_class(FIGURE_CLASS)
    box._ipython_display_ = partial(display_with_picture, box, figure)
    return box


def display_with_picture(box: Any, figure: Any | None) -> None:
    """Display a widget, and the picture that its cell keeps for who opens the notebook without a kernel."""
    display = import_module("IPython.display").display
    display(box._repr_mimebundle_(), raw=True)
    if figure is not None and not on_a_page():  # which nobody can open again
        display(figure_output(figure)["data"], raw=True)


def on_a_page() -> bool:
    """Tell whether the notebook is served by Voilà, without cells."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")


def figure_output(figure: Any) -> dict[str, Any]:
    """Return a figure as the output of a cell: set as a whole, it neither flickers nor piles up."""
    plotly, text = json.loads(figure.to_json()), str(figure.layout.title.text)
    data = {"application/vnd.plotly.v1+json": plotly, "text/plain": text}
    return {"output_type": "display_data", "data": data, "metadata": {}}


@contextmanager
def errors_shown(what: str, show: Callable[[str, str], None]) -> Generator[None]:
    """Hand the words of an exception, and the field at fault, to `show`: Jupyter hides them in a log."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, CondnumError) else f"{type(error).__name__}: "
        show(f"{what}: {kind}{error}", getattr(error, "field", ""))


def alarm(text: str) -> str:
    """Return the red line of an error."""
    style = "color:var(--jp-error-color1, #D32F2F);font-weight:bold"
    return f'<span role="alert" style="{style}">{html.escape(text)}</span>'
