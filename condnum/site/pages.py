"""The pages of the site as HTML: the front, one for each experiment, the glossary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from condnum.errors import InvalidInputError
from condnum.extras import require
from condnum.report.correction_tables import CORRECTIONS_CSV, formula_html
from condnum.report.html import NotebookBody, fill_slots, notebook_body
from condnum.report.notebook import read_notebook
from condnum.reproduce.record import ReproductionRecord
from condnum.site import claims, verdict
from condnum.site.contents import Heading, add_anchors, frame_tables, mark_indices
from condnum.site.figures import FrontFigure, front_figures
from condnum.site.plot_data import figure_html
from condnum.site.result import REPORT, Result
from condnum.site.run_facts import PublishedFile, duration, revision_words, run_facts
from condnum.site.scoreboard import Section, scoreboard, tally
from condnum.site.thumbnail import thumbnail

#: From the site's folder to the front page, and back.
FRONT, HERE = "../index.html", "site/"


@dataclass(frozen=True)
class NotebookPage:
    """An executed notebook, ready for a page."""

    body: NotebookBody
    html: str
    headings: list[Heading]
    picture: str | None  # SVG of the first figure that can be drawn in small


def read_asset(name: str) -> str:
    """Return a file of the site's assets as text."""
    return files("condnum.site").joinpath("assets", name).read_text(encoding="utf-8")


def notebook_page(run: Result) -> NotebookPage:
    """Convert the executed notebook of a run: anchors, framed tables with links to the run, figures' data."""
    if run.folder is None:
        raise InvalidInputError(f"'{run.name}' has no result to show; run: {run.record.command}.")
    body = notebook_body(read_notebook(run.folder / REPORT), name=run.record.title)
    soup = require("bs4", "notebooks").BeautifulSoup(body.html, "html.parser")
    headings = add_anchors(soup)
    mark_indices(soup, ["h1", "h2", "h3"])
    frame_tables(soup, "#run")
    drawn = [figure_html(figure, f"figure-{place}") for place, figure in enumerate(body.figures)]
    picture = next(filter(None, (thumbnail(figure) for figure in body.figures)), None)
    headings += [
        Heading(2, "run", "What made this page"),
        Heading(3, "files", "Files"),
        Heading(3, "again", "Run it yourself"),
    ]
    return NotebookPage(body, fill_slots(str(soup), drawn), headings, picture)


def experiment_html(
    page: NotebookPage,
    run: Result,
    published: Sequence[PublishedFile],
    before: Result | None = None,
    after: Result | None = None,
) -> str:
    """Return the page of an experiment."""
    return _render(
        "experiment.html.j2",
        {"here": "", "front": FRONT, "headings": page.headings, "figures": bool(page.body.figures)},
        body=page.body,
        html=page.html,
        run=run,
        files=published,
        facts=run_facts(run),
        before=before,
        after=after,
    )


def front_html(
    record: ReproductionRecord, results: Sequence[Result], pictures: Mapping[str, str], footer: str
) -> str:
    """Return the front page."""
    sections, drawn = scoreboard(results), front_figures(results)
    lesson = next((run for run in results if run.folder and run.table(_CORRECTIONS) is not None), None)
    table = None if lesson is None else lesson.table(_CORRECTIONS)
    return _render(
        "index.html.j2",
        {"here": HERE, "front": "", "headings": _front_headings(sections, drawn), "figures": bool(drawn)},
        record=record,
        results=results,
        tally=_tally(results),
        failures=[run for run in results if run.record.status == "failed"],
        waiting=[run for run in results if run.record.status == "waiting"],
        unrun=[run for run in results if run.record.status == "not run" and not run.page],
        sections=[section for section in sections if section.comparable],
        stand_ins=[section for section in sections if not section.comparable],
        tally_words=tally(sections),
        rule=verdict.RULE,
        claim_rule=claims.RULE,
        conventions=claims.CONVENTIONS,
        audit=next((run for run in results if run.study == "reproduction-audit" and run.page), None),
        pictures=pictures,
        durations={run.name: duration(run.record.seconds) for run in results},
        drawn=drawn,
        figure_html={one.key: figure_html(one.figure, f"plot-{one.key}") for one in drawn},
        corrections=[] if table is None else table.to_dict("records"),
        corrections_page="" if lesson is None else lesson.page,
        environment=_environment(record),
        footer=footer,
    )


def glossary_html(footer: str) -> str:
    """Return the page of terms."""
    nbformat = require("nbformat", "notebooks")
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(read_asset("glossary.md"))])
    soup = require("bs4", "notebooks").BeautifulSoup(notebook_body(node).html, "html.parser")
    headings = add_anchors(soup)
    mark_indices(soup, ["h3", "p"])
    frame = {"here": "", "front": FRONT, "headings": headings, "figures": False}
    return _render("glossary.html.j2", frame, html=str(soup), active="glossary", footer=footer)


_CORRECTIONS = CORRECTIONS_CSV.removesuffix(".csv")


def _front_headings(sections: Sequence[Section], drawn: Sequence[FrontFigure]) -> list[Heading]:
    """Return the contents of the front page."""
    compared = [section for section in sections if section.comparable]
    others = [section for section in sections if not section.comparable]
    return [
        Heading(2, "scoreboard", "Obtained against published"),
        *(Heading(3, section.key, section.short) for section in compared),
        *([Heading(2, "claims", "Claims about the methods")] if compared else []),
        *([Heading(2, "figures", "Figures")] if drawn else []),
        *(Heading(3, one.key, one.title) for one in drawn),
        Heading(2, "corrections", "Theoretical corrections"),
        Heading(2, "experiments", "Experiments"),
        *([Heading(2, "stand-ins", "Stand-ins on other data")] if others else []),
        *(Heading(3, section.key, section.short) for section in others),
        Heading(2, "environment", "Environment and provenance"),
        Heading(2, "limits", "What this page cannot know"),
    ]


def _tally(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Count the experiments by what became of them."""
    counts = {
        "finished": sum(run.record.ok for run in results),
        "failed": sum(run.record.status == "failed" for run in results),
        "still to come": sum(run.record.status == "waiting" for run in results),
    }
    seconds = sum(run.record.seconds for run in results if run.record.ok)
    told = [(str(count), words) for words, count in counts.items() if count or words == "finished"]
    return [*told, (duration(seconds), "of computing")]


def _environment(record: ReproductionRecord) -> list[tuple[str, str]]:
    """Return where the reproduction ran, as titles and HTML."""
    escape = require("markupsafe", "notebooks").escape
    names = ", ".join(f"{name} {value}" for name, value in record.versions.items())
    return [
        ("Scale", str(escape(record.scale))),
        ("Started", str(escape(record.started_utc.replace("T", " ").replace("+00:00", " UTC")))),
        ("Duration", duration(record.seconds)),
        ("Code", revision_words(record.source)),
        ("Device", str(escape(record.device.get("name", "not recorded")))),
        ("Versions", str(escape(names))),
    ]


def _render(template: str, frame: Mapping[str, Any], **values: Any) -> str:
    """Fill a template."""
    jinja2 = require("jinja2", "notebooks")
    loader = jinja2.FunctionLoader(read_asset)
    environment = jinja2.Environment(
        autoescape=True, loader=loader, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["formula"] = lambda text: require("markupsafe", "notebooks").Markup(
        formula_html(text)
    )
    macros = environment.get_template("macros.html.j2").module
    given = {"active": "", "footer": "", "macros": macros, **frame, **values}
    return str(environment.get_template(template).render(given))
