"""A form of a notebook's parameters in JupyterLab; its button runs the notebook as the command line does."""

import os
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path
from threading import Thread
from typing import Any

from condnum.errors import CondnumError, require
from condnum.figures.kept import display_with_picture
from condnum.progress import Event, stage_words
from condnum.report.command import default_folder
from condnum.report.html import answer_cell
from condnum.report.notebook import ParameterNotebook, literal, read_notebook
from condnum.report.run import PAGE, REPORT, run_into_folder

_widgets = require("ipywidgets", "notebooks")
_Box: Any = _widgets.VBox


class Form(_Box):
    """A field for each parameter, and Run: the answer of `condnum run` with these values stands below.

    The run has a kernel of its own, and its folder is the one that the command line would take. Restarting
    the kernel of the form stops it; finished cells are kept.

    Raises:
        UnknownNameError: There is no such notebook.
    """

    def __init__(self, notebook: str | os.PathLike[str]) -> None:
        self.book = ParameterNotebook.find(notebook)
        shown = (of for name, of in self.book.parameters.items() if name not in ("out", "quiet", "static"))
        self.fields = {of.name: _field(of) for of in shown}
        self.button = _widgets.Button(description="Run", button_style="primary")
        self.said, self.output = _widgets.HTML(), _widgets.Output()
        self.button.on_click(lambda _: self.start())
        rows = [
            _widgets.HBox([field, _widgets.HTML(f"<small>{escape(field.tooltip)}</small>")])
            for field in self.fields.values()
        ]
        super().__init__([*rows, self.button, self.said, self.output])

    def _ipython_display_(self) -> None:
        display_with_picture(self, {})

    def start(self) -> Thread:
        """Run the notebook with what the fields hold, in a thread, so that other cells can be used."""
        given = {
            name: field.value
            for name, field in self.fields.items()
            if field.value != self.book.defaults[name]
        }
        thread = Thread(target=self._run, args=(given,), daemon=True)
        self.button.disabled, self.output.outputs = True, ()
        thread.start()
        return thread

    def _run(self, given: Mapping[str, Any]) -> None:
        name = self.book.path.stem.replace("_", "-")
        words = [_option(key.replace("_", "-"), value) for key, value in given.items()]
        command = " ".join(["condnum", "audit" if name == "audit" else f"run {name}", *words])

        def say(text: str, color: str = "inherit") -> None:
            self.said.value = f'<code>{escape(command)}</code><br><span style="color: {color}">{text}</span>'

        def progress(event: Event) -> None:
            of = f"{event['done']} of {event['total']}: " if event.get("total") else ""
            say(f"{of}{escape(stage_words(event))} …")

        say("The kernel of the run starts …")
        try:
            folder = default_folder(name, given)
            record = run_into_folder(self.book, given, folder, quiet=True, progress=progress)
            answer = answer_cell(read_notebook(folder / REPORT))
            self.output.outputs = tuple(answer.outputs if answer else ())
            failed = "".join(f"<br>failed: {escape(line)}" for line in record["failures"])
            say(f"Page and tables: {escape(str(Path(folder, PAGE).absolute()))}{failed}")
        except CondnumError as error:
            say(escape(str(error)), "#d03b3b")
        except Exception as error:  # which a thread would take along
            say(escape(f"{type(error).__name__}: {error}"), "#d03b3b")
        finally:
            self.button.disabled = False


def _option(name: str, value: Any) -> str:
    """Return an option as it is typed.

    Examples:
        >>> _option("attackers", False), _option("data", "My houses.csv")
        ('--no-attackers', "--data 'My houses.csv'")
    """
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{name}"
    return f"--{name} {shlex.quote(str(value))}"


def _field(parameter: Any) -> Any:
    """Return the field of a parameter: the words before the colon of its comment are the choices."""
    names, colon, _ = parameter.help.partition(": ")
    words = names.split("|") if colon and " " not in names else []
    known = [word for word in words if word.islower()]
    kinds = {"bool": "Checkbox", "int": "IntText", "float": "FloatText"}
    kind = kinds.get(parameter.inferred_type_name, "Combobox" if known else "Text")
    look: dict[str, Any] = {"options": known} if known else {}
    if known and known == words:
        kind = "Dropdown"
    return getattr(_widgets, kind)(
        value=literal(parameter.default), description=parameter.name, tooltip=parameter.help,
        style={"description_width": "150px"}, layout={"width": "420px"}, **look,
    )  # fmt: skip
