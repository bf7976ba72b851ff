"""Errands in the reader's browser: downloads, the clipboard, the page's theme, the width of figures.

ipywidgets has no such widget. An anywidget without anything to see does it in JupyterLab and in Voilà,
also when the kernel runs on another machine. Without anywidget a download becomes a file in `exports/`
beside the notebook, and the clipboard is left alone.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from condnum.extras import require

traitlets = require("traitlets", "notebooks")

#: Where downloads go without anywidget, below the kernel's working directory.
EXPORT_FOLDER = Path("exports")

#: CSS class of the box whose figures the courier fits to the page.
EXPLORER_CLASS = "condnum-explorer"
#: The same for a figure without controls.
FIGURE_CLASS = "condnum-figure"

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


def courier() -> Any | None:
    """Return a new courier, to be placed among the children of a box."""
    try:
        return _courier_class()()
    except ImportError:
        return None


@cache
def _courier_class() -> Any:
    """Define the widget's class once anywidget is known to be there."""
    base = import_module("anywidget").AnyWidget
    told = {name: traitlets.Bool(False).tag(sync=True) for name in ("dark", "narrow")}
    tips = traitlets.Dict().tag(sync=True)  # help of each control, by its description
    members = {"_esm": _SCRIPT, **told, "tips": tips, "__module__": __name__}
    return type("Courier", (base,), members | {"__doc__": "Downloads, clipboard and theme of the page."})


def deliver(to: Any | None, name: str, content: bytes, mime: str) -> str:
    """Send a file to the browser, or write it where there is no courier."""
    if to is not None:
        to.send({"kind": "download", "name": name, "type": mime}, buffers=[content])
        return f"Sent {name} to your browser's downloads."
    EXPORT_FOLDER.mkdir(exist_ok=True)
    path = EXPORT_FOLDER / name
    path.write_bytes(content)
    return f"Wrote {path.resolve()}."
