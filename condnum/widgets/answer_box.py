"""Where a page shows no cells: a field for each answer to an exercise, and its verdict below."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from condnum.extras import require
from condnum.teaching.exercises import Verdict
from condnum.teaching.exercises.formula import FUNCTIONS, formula
from condnum.widgets.figure_view import on_a_page

ipywidgets = require("ipywidgets", "notebooks")
VBox: Any = ipywidgets.VBox


class AnswerBox(VBox):
    """Fields for the answers to one exercise, read as formulas by `teaching.exercises.formula`.

    Args:
        examine: One of the checks of `teaching.exercises`.
        **answers: The gaps, by name; one that is a function is answered by a formula in its arguments.
    """

    def __init__(self, examine: Callable[..., Verdict], **answers: Any) -> None:
        self._examine = examine
        self._names = {
            name: tuple(inspect.signature(gap).parameters) if callable(gap) else ()
            for name, gap in answers.items()
        }
        self.fields = {name: _field(name, arguments) for name, arguments in self._names.items()}
        self.button = ipywidgets.Button(description="Check", tooltip="Is this right, and why?")
        self.verdict = ipywidgets.HTML()
        self.button.on_click(self._on_click)
        super().__init__(children=[*self.fields.values(), self.button, self.verdict])

    @classmethod
    def show(cls, examine: Callable[..., Verdict], **answers: Any) -> Any:
        """Return the verdict on the answers; on a page of Voilà, while they are gaps, the box.

        Args:
            examine: One of the checks of `teaching.exercises`.
            **answers: What the cells hold.

        Returns:
            What a notebook's cell displays.
        """
        verdict = examine(*answers.values())
        return cls(examine, **answers) if on_a_page() and verdict.status == "not answered yet" else verdict

    def _on_click(self, _: Any) -> None:
        """Read the fields and examine them; a formula that cannot be read is a finding as well."""
        try:
            answers = [formula(self.fields[name].value, names) for name, names in self._names.items()]
            verdict = self._examine(*answers)
        except Exception as error:  # of the formula: it may divide by zero, or invert what cannot be inverted
            verdict = Verdict("wrong", f"the answer cannot be computed: {error}")
        self.verdict.value = verdict._repr_html_()


def _field(name: str, arguments: tuple[str, ...]) -> Any:
    """Return the field of one answer."""
    tip = f"A formula with + - * / ** @ .T [ ] and {', '.join(FUNCTIONS)}; lines name = formula before it."
    kind, hint = ipywidgets.Text, "a number, or a matrix such as [[2, 1], [1, 2]]"
    if arguments:
        kind, hint = ipywidgets.Textarea, f"a formula in {', '.join(arguments)}"
    label = f"{name}({', '.join(arguments)}) =" if arguments else f"{name} ="
    return kind(
        description=label, placeholder=hint, tooltip=tip, style={"description_width": "16ch"},
        layout={"width": "640px", "max_width": "100%"},
    )  # fmt: skip
