"""A run: a notebook with its data checked first, executed into a folder with its page and provenance."""

import dataclasses
import importlib
import logging
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from condnum.files import (
    FAILED,
    FAILURES,
    RECORD,
    REVISIONS,
    ResultsFolder,
    output_folder,
    read_table,
    results_folder,
    write_json,
)
from condnum.machine import changed_text, provenance, source_revision
from condnum.report.notebook import REPORT, ParameterNotebook, run_notebook

#: The page of a finished run.
PAGE = "report.html"

#: Set when a signal has stopped this program.
STOPPED = threading.Event()


def say(message: str) -> None:
    """Print one wrapped paragraph on the standard error, after the program's name."""
    width = min(100, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    print(wrapper.fill(f"condnum: {' '.join(message.split())}"), file=sys.stderr, flush=True)


@dataclass(frozen=True)
class NotebookCommand:
    """A notebook as a command."""

    notebook: str  # a name of condnum's own, or a path
    config: str = ""  # module:class of its study, built and loaded before a kernel starts
    fixed: Mapping[str, Any] = field(default_factory=dict)  # parameters that are not options of this command
    defaults: Mapping[str, Any] = field(default_factory=dict)  # where they are not the notebook's

    def values(self, notebook: ParameterNotebook) -> dict[str, Any]:
        """Return the defaults of the options; a page has no kernel for a widget and is `static`."""
        known = {**notebook.defaults, **self.defaults}
        known |= {"static": True} if "static" in known else {}
        return {name: known[name] for name in known if name not in (*self.fixed, "out", "quiet", "help")}


_DIGITS = "condnum.studies.linear:DigitPairs"
_EVERY_PAIR = {"seeds": 3, "pairs": "", "device": "auto"}

#: Experiments by the names of their commands; any other notebook is one by its own name or path.
EXPERIMENTS = {
    "house-prices": NotebookCommand("house_prices", "condnum.studies.linear:HousePrices"),
    "mnist": NotebookCommand("mnist_pairs", _DIGITS, {}, _EVERY_PAIR),
    "digits": NotebookCommand("mnist_pairs", _DIGITS, {"data": "digits"}, _EVERY_PAIR),
    "limits": NotebookCommand("limits", "condnum.studies.limits:Limits"),
    "attackers": NotebookCommand("attackers", "condnum.studies.attackers:Attackers"),
    "erasure": NotebookCommand("erasure", "condnum.studies.erasure:ErasureStudy"),
    "deep": NotebookCommand("deep_nets", "condnum.studies.deep:DeepNets"),
    "stability": NotebookCommand("stability", "condnum.studies.stability:StabilityStudy"),
    "deep-attackers": NotebookCommand("deep_attackers", "condnum.studies.deep_attackers:DeepAttackers"),
    "reproduction-audit": NotebookCommand(
        "reproduction_audit", "condnum.studies.reproduction_audit:ReproductionAudit"
    ),
    "corrections": NotebookCommand("corrections"),
}


def loaded(config: str, values: Mapping[str, Any]) -> tuple[str, Mapping[str, str]]:
    """Build a study's configuration and load its data: what cannot run fails before a kernel starts."""
    home, _, name = config.partition(":")
    kind = getattr(importlib.import_module(home), name)
    given = {field.name: values[field.name] for field in dataclasses.fields(kind) if field.name in values}
    chosen = kind.from_parameters(**given)
    data = chosen.load()
    cells = list(chosen.cells(data))  # makes what the cells start from, such as a backbone
    if values.get("scheduler") and "jobs" in values:
        chosen.executor(data, cells, 1, values["scheduler"])  # is it an address?
    origin = getattr(data, "provenance", None)
    if origin is not None and not origin.known_checksum:
        say(
            f"warning: SHA-256 {data.checksum} of {data.name} in {origin.location} is unknown; the results "
            "describe these files. Run condnum data for details."
        )
    for warning in getattr(data, "warnings", ()):
        say(f"warning: {warning}")
    if hasattr(data, "label"):
        return data.label, {data.label: data.checksum}
    return ", ".join(getattr(chosen, "chosen_backbones", ())), data.checksums


class StoppedError(KeyboardInterrupt):
    """A run was stopped; the text says what is kept."""


def run_command(
    command: NotebookCommand,
    notebook: ParameterNotebook,
    given: Mapping[str, Any],
    folder: Path,
    **options: Any,
) -> list[str]:
    """Check options and data, then run a notebook into a folder; return a line per cell that failed."""
    values = {**command.fixed, **given}
    if command.config and "device" in values:
        from condnum.arrays import resolve_device

        values["device"] = str(resolve_device(values["device"]))
    label, checksums = loaded(command.config, values) if command.config else ("", {})
    title = f"{notebook.heading} ({label})" if label else notebook.heading
    return run_report(notebook, values, folder, title=title, checksums=checksums, **options)


def run_report(
    notebook: ParameterNotebook,
    values: Mapping[str, Any],
    folder: Path,
    *,
    title: str,
    checksums: Mapping[str, str],
    quiet: bool = False,
    **options: Any,
) -> list[str]:
    """Run a notebook into a folder, which has its results before or, whole, those with page and record."""
    from condnum.report.html import export_html

    seeds = values.get("seeds")
    started, source = datetime.now(UTC), source_revision()
    with results_folder(folder) as held:
        try:
            ours = {"out": str(held.path), "quiet": quiet}
            options["shown"] = held.folder  # where `abandoned` leaves a failed notebook
            report = run_notebook(notebook, values, held.path, quiet=quiet, optional=ours, **options)
            record = provenance(
                parameters=values,
                seeds=range(seeds) if isinstance(seeds, int) else (),
                checksums=checksums,
                device=str(values.get("device", "cpu")),
                started=started,
                source=source,
            )
            if changed := changed_text(source, record["source"]):
                say(f"warning: {changed}")
            parts = read_table(held.path, REVISIONS.removesuffix(".csv"))
            if parts is not None and record["source"]:
                record["source"]["parts"] = parts.set_index("revision")["cells"].to_dict()
            export_html(report, held.path / PAGE, title=title, note=changed)
            write_json(held.path / RECORD, {**record, "files": held.checksums()})
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt) and not STOPPED.is_set():
                abandoned(held)
                raise
            # The tasks of a kernel that was stopped end in errors that nobody waits for.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            (held.path / FAILED).unlink(missing_ok=True)
            kept = abandoned(held)
            raise StoppedError(
                f"; finished cells kept in {held.cells}: {kept}. The same command resumes from there."
                if kept
                else " before the first cell was finished; nothing was kept."
            ) from None
        failures = read_table(held.path, FAILURES.removesuffix(".csv"))
        try:
            held.replace()
        except KeyboardInterrupt:
            raise StoppedError(
                f" after the run had finished: the results in {held.folder} are complete."
            ) from None
    rows = () if failures is None else failures.itertuples(index=False)
    return [": ".join(" ".join(str(word).split()) for word in row) for row in rows]


def abandoned(held: ResultsFolder) -> int:
    """Leave of a run its finished cells and a failed notebook; count the cells."""
    from condnum.studies.frame.cells import ResultStore

    if (held.path / FAILED).exists():
        os.replace(held.path / FAILED, output_folder(held.folder) / FAILED)
    held.clear()
    kept = ResultStore(held.cells, mode="read").count() if held.cells.exists() else 0
    if not kept:
        shutil.rmtree(held.cells, ignore_errors=True)
    return kept


def is_whole(folder: Path) -> bool:
    """Tell whether a folder holds a finished run."""
    return all((folder / name).is_file() for name in (REPORT, PAGE, RECORD))
