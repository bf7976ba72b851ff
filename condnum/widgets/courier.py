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
function render({ el }) {
  // Plotly draws at 700 pixels where the page has no width yet, and then follows the window alone.
  const watch = new ResizeObserver(() => {
    const stale = Array.from(el.closest(".EXPLORER")?.querySelectorAll(".js-plotly-plot") ?? [])
      .some((plot) => plot._fullLayout && plot.clientWidth > 0
        && Math.abs(plot._fullLayout.width - plot.clientWidth) > 1);
    if (stale) window.dispatchEvent(new Event("resize"));
  });
  const box = el.closest(".EXPLORER");
  if (box) watch.observe(box);
  else requestAnimationFrame(() => watch.observe(el.closest(".EXPLORER") ?? el));
  return () => watch.disconnect();
}
export default { initialize, render };
""".replace("EXPLORER", EXPLORER_CLASS)


def courier() -> Any | None:
    """Return a new courier, to be placed among the children of a box.

    Returns:
        A widget with nothing to see, with the trait `dark` (the page's theme), or None without anywidget.
    """
    try:
        return _courier_class()()
    except ImportError:
        return None


@cache
def _courier_class() -> Any:
    """Define the widget's class once anywidget is known to be there."""
    base = import_module("anywidget").AnyWidget
    members = {"_esm": _SCRIPT, "dark": traitlets.Bool(False).tag(sync=True), "__module__": __name__}
    return type("Courier", (base,), members | {"__doc__": "Downloads, clipboard and theme of the page."})


def deliver(to: Any | None, name: str, content: bytes, mime: str) -> str:
    """Send a file to the browser, or write it where there is no courier.

    Args:
        to: Of `courier`.
        name: File name.
        content: Its bytes.
        mime: Its type.

    Returns:
        A sentence that says where the file went.

    Raises:
        OSError: The file cannot be written.
    """
    if to is not None:
        to.send({"kind": "download", "name": name, "type": mime}, buffers=[content])
        return f"Sent {name} to your browser's downloads."
    EXPORT_FOLDER.mkdir(exist_ok=True)
    path = EXPORT_FOLDER / name
    path.write_bytes(content)
    return f"Wrote {path.resolve()}."
