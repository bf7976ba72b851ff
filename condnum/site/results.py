"""The pages of a reproduction: obtained against published, and each experiment's notebook with its run."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import nbformat
from bs4 import BeautifulSoup
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from nbformat.v4 import new_markdown_cell

from condnum.files import shipped
from condnum.machine import revision_text
from condnum.progress import duration
from condnum.page.answer import PROTOCOLS, answer
from condnum.page.deep import committed_tables
from condnum.page.experiments import ExperimentResult, experiments
from condnum.page.html import figure_html, shown_notebook
from condnum.page.notebook import read_notebook
from condnum.page.run import REPORT
from condnum.page.tables import CORRECTIONS_CSV, as_html, formula_html, mark_tables, sortable
from condnum.site.notebooks import page_notebook

#: Anchor of the section that says what made a page.
_RUN = "what-made-this-page"

#: Studies whose first figure is one of the paper's.
_FIGURES = ("house-prices", "mnist")


def committed_runs(but: Collection[str] = ()) -> list[ExperimentResult]:
    """Return the results of real runs that come with the source, but those of some names."""
    found = []
    for one in experiments("full"):
        run = ExperimentResult(one, shipped("reports") / one.committed, "committed", "")
        if one.committed and one.name not in but and (known := run.provenance):
            date = str(known.get("started_utc", "unknown date"))[:10]
            revision = revision_text(known.get("source")) or "unknown"
            text = (
                f"This result comes with the source, it is not of this run: computed on {date} at revision "
                f"{revision} by `{known.get('command', one.typed)}`."
            )
            found.append(replace(run, error=text))
    return found


def results_pages(
    runs: Sequence[ExperimentResult] | None, recorded: Collection[str], files: Path
) -> dict[str, str]:
    """Return the sources of the pages by name; copy what can be downloaded to `files`.

    Without runs of this machine (None) they show those that come with the source.
    """
    own = [] if runs is None else runs
    known = committed_runs(but=[run.name for run in own if run.page])
    instead = {run.name for run in known}
    results = [run for run in own if run.page or run.status == "failed" or run.name not in instead] + known
    shown = [run for run in results if run.page]
    compared = [
        (run, _answer_html(run)) for run in shown if run.experiment.run in PROTOCOLS and _has_numbers(run)
    ]
    pages, figures = dict[str, str](), list[tuple[str, str]]()
    for run in shown:
        path = Path(run.folder or "") / REPORT
        text = _run_page(run, run.publish(files / run.name))
        if not path.exists():
            pages[f"results/{run.name}.md"] = text
            continue
        notebook = read_notebook(path)
        page = page_notebook(notebook, run.name, recorded)
        page.cells.append(new_markdown_cell(text, id="run"))
        if notice := _notice(run):
            page.cells.insert(0, new_markdown_cell(notice, id="older"))
        pages[f"results/{run.name}.ipynb"] = nbformat.writes(page)
        if run.experiment.run in _FIGURES and (drawn := shown_notebook(notebook)[1]):
            figures.append((run.experiment.title, figure_html(drawn[0], f"first-{run.name}")))
    lesson = next((run for run in shown if run.name == "corrections"), None)
    corrected = lesson.table(CORRECTIONS_CSV.removesuffix(".csv")) if lesson else None
    pages["results/index.md"] = _template("results.md.j2").render(
        RUN=_RUN,
        committed=runs is None,
        results=results,
        shown=shown,
        failed=[run for run in results if run.status == "failed"],
        compared=compared,
        figures=figures,
        corrections=[] if corrected is None else corrected.to_dict("records"),
    )
    return pages


def _notice(run: ExperimentResult) -> str:
    """Return what stands above a result that is not of this run and this code."""
    if run.status == "committed":
        return f":::{{note}}\n{run.error}\n:::"
    return f":::{{warning}}\n**An older result.** {run.error}\n:::" if run.older else ""


def _run_page(run: ExperimentResult, files: Sequence[str]) -> str:
    """Return what made a page; where there is no notebook, under a title and after the run's pictures."""
    known, parameters = run.provenance, run.provenance.get("parameters", {})
    device, source = known.get("device", {}), known.get("source") or {}
    changed = ", with uncommitted changes" if source.get("dirty") else ""
    if source.get("revision_at_end", source.get("revision")) != source.get("revision"):
        changed = f"; changed during the run to {source['revision_at_end'][:12]}"
    given = {key: value for key, value in parameters.items() if value not in (None, "")}
    facts = {
        "Started": str(known.get("started_utc", "")).replace("T", " ").replace("+00:00", " UTC"),
        "Duration": duration(run.seconds),
        "Seeds": ", ".join(map(str, known.get("seeds", []))) or parameters.get("seed", ""),
        "Data, SHA-256": "; ".join(f"{name}: {checksum}" for name, checksum in known.get("data", {}).items()),
        "Code": f"revision {source['revision'][:12]}{changed}" if source else "not from a git work tree",
        "Device": f"{device.get('name', 'not recorded')}, {device.get('where', '1 process')}, "
        f"threads each: {device.get('threads', '?')}",
        "System": " ".join(map(str, known.get("platform", {}).values())),
        "Versions": ", ".join(f"{name} {value}" for name, value in known.get("versions", {}).items()),
        "Parameters": ", ".join(f"{name} = {json.dumps(value)}" for name, value in given.items()),
    }
    text = _template("run.md.j2").render(run=run, facts=facts, files=files)
    if REPORT in files:
        return text
    images = [name for name in files if name.endswith(".png")]
    pictures = [f'<img src="../runs/{run.name}/{name}" alt="{name}">' for name in images]
    summary = run.table("summary")
    more = committed_tables(summary) if run.experiment.run == "deep" and summary is not None else []
    shown = "\n".join([_answer_html(run), *pictures, _framed(*map(as_html, more))])
    around = f"# {run.experiment.title}\n\n{run.experiment.summary}\n\n"
    return f"{around}```{{raw}} html\n<div>{shown}</div>\n```\n\n{_notice(run)}\n\n{text}"


def _has_numbers(run: ExperimentResult) -> bool:
    return all(run.table(name) is not None for name in ("summary", "results"))


def _answer_html(run: ExperimentResult) -> str:
    """Return the sentence and the table of a run, the published numbers beside those obtained."""
    found = answer(run.experiment.run, run.table, ", ".join(run.provenance.get("data", {})))
    return f"{found._repr_html_()}\n{_framed(sortable(found.table))}"


def _framed(*tables: str) -> str:
    """Return tables, each in a frame that scrolls."""
    soup = BeautifulSoup("\n".join(tables), "html.parser")
    mark_tables(soup)
    for table in soup.find_all("table"):
        table.wrap(soup.new_tag("div", attrs={"class": "scroll", "tabindex": "0"}))
    return str(soup)


def _template(name: str) -> Template:
    """Return a template; a missing value is an error."""
    environment = Environment(
        autoescape=True,
        loader=PackageLoader("condnum.site", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"formula": lambda text: Markup(formula_html(str(text))), "duration": duration}
    return environment.get_template(name)
