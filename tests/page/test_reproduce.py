"""Reproductions: experiments one by one, what is kept, what failures and stops leave; the page of results."""

import re

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from condnum.cli import main
from condnum.errors import InvalidInputError
from condnum.page import reproduce as module
from condnum.page.notebook import RUN_TYPE
from condnum.page.reproduce import SPINE

TABLE = (
    "method,rir_mean,rir_std,published_rir_mean,published_rir_std,steps,published_steps,immunized_ridge,of,"
    "benign_steps,harmful_steps\nours,9293.4,1126.6,356.2,5.5,12000,100 epochs,5,5,0.7,inf\n"
)


def executed(folder, key="", failed=0):
    """Write what a run leaves."""
    record = {"started_utc": "2030-01-02T03:04:05+00:00", "seconds": 83.0, "source": {"revision": "f" * 40}}
    kept = {"name": folder.name, "sentence": "It works, on D_P & D_H.", "table": TABLE}
    kept["record"] = record | {"cells": {"failed": failed}}
    output = new_output("display_data", data={"text/plain": "It works.", RUN_TYPE: kept})
    cells = [new_markdown_cell(f"# Title of {folder.name}"), new_code_cell("run", outputs=[output])]
    cells[1].metadata["tags"] = ["answer"]
    folder.mkdir(parents=True, exist_ok=True)
    told = {"condnum": {"key": key}, "language_info": {"name": "python", "pygments_lexer": "ipython3"}}
    nbformat.write(new_notebook(cells=cells, metadata=told), folder / "report.ipynb")
    (folder / "report.html").write_text("the page")


@pytest.fixture
def runs_end(monkeypatch):
    """`runs_end(fails=…, stops=…, cells=…)`: let runs end at once, or in trouble; return who ran."""

    def put(fails="", stops="", cells=0):
        ran = []

        def fake(book, given, folder, *, quiet, title):
            ran.append(folder.name)
            if folder.name == stops:
                raise KeyboardInterrupt
            if folder.name == fails:
                raise InvalidInputError("no room on Mars; take fewer rows.")
            executed(folder, book.node.metadata["condnum"]["key"], cells)

        monkeypatch.setattr(module, "run_into_folder", fake)
        return ran

    return put


@pytest.fixture
def go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("condnum.page.results.shipped", lambda name: reports)
    reports = tmp_path / "committed"
    executed(reports / "limits")
    (reports / "README.md").write_text("| [old](old/README.md) | a question | `it` was so | command |\n")
    return lambda *words: main(["reproduce", "-q", *words])


def page(folder):
    return BeautifulSoup((folder / "reports/index.html").read_text("utf-8"), "html.parser")


def test_all_run_once_and_stand_beside_the_paper(go, runs_end, tmp_path, capsys):
    ran = runs_end()
    assert go() == 0
    assert ran == [*SPINE]
    assert capsys.readouterr().out == "reports/index.html\n"
    shown = page(tmp_path)
    heads = [of.get_text() for of in shown.find_all("h2")]
    assert heads == [*(f"Title of {name}" for name in SPINE), "Title of limits", "Earlier results"]
    text = " ".join(shown.get_text(" ").split()).replace("\N{NO-BREAK SPACE}", " ")
    for words in ("9,293 ± 1,100", "356.2", "5 of 5", "100 epochs", "∞", "not of this machine: 2030-01-02"):
        assert words in text, words
    links = [a["href"] for a in shown.select("p.note a")]
    assert all((tmp_path / "reports" / link).is_file() for link in links)
    assert go() == 0
    assert len(ran) == len(SPINE)  # nothing ran again


def test_what_fails_is_said_and_does_not_stop_the_others(go, runs_end, tmp_path, capsys):
    ran = runs_end(fails="mnist")
    assert go() == 1
    assert ran == [*SPINE]
    assert "condnum: mnist failed: no room on Mars; take fewer rows." in capsys.readouterr().err
    assert "mnist failed. no room on Mars" in page(tmp_path).get_text()
    runs_end()
    assert go() == 0
    assert "failed" not in page(tmp_path).get_text()


def test_ctrl_c_keeps_what_is_finished(go, runs_end, capsys):
    ran = runs_end(stops="mnist")
    assert go() == 130
    assert re.search(r"stopped by Ctrl-C; finished cells are in runs.reproduce", capsys.readouterr().err)
    again = runs_end()
    assert go() == 0
    assert again == [name for name in SPINE if name not in ran[:-1]]


def test_the_spine_never_takes_fewer_steps_than_the_published_run():
    assert not [name for name, given in SPINE.items() if "steps" in given]
