"""What the cell of a widget keeps for who opens the notebook without a kernel."""

import os
from importlib import import_module
from typing import Any

#: Takes the place of "Error displaying widget: model not found" in a notebook that is opened again.
KEPT = """<style>
.condnum-kept { display: none; }
.jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets):has(+ * .condnum-kept) { display: none; }
.jp-OutputArea-child:has(> .jp-OutputArea-output.jupyter-widgets) + * .condnum-kept { display: block; }
</style>
<p class="condnum-kept">Kept from an earlier run. Run this cell to use its controls.</p>"""


def display_with_picture(widget: Any, picture: dict[str, Any]) -> None:
    """Display a widget, and what its cell keeps for who opens the notebook without a kernel."""
    display, shown = import_module("IPython.display").display, widget._repr_mimebundle_()
    display(shown[0] if isinstance(shown, tuple) else shown, raw=True)  # of anywidget it is a pair
    if on_a_page():  # which nobody can open again
        return
    display({"text/html": KEPT, "text/plain": "Run this cell to use its controls."}, raw=True)
    if picture:
        display(picture, raw=True)


def on_a_page() -> bool:
    """Tell whether the notebook is served by Voilà, without cells."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("voila/")
