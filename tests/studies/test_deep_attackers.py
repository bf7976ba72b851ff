"""The panel of deep attacks as a study: models made or given, resume, tables, what it refuses."""

import dataclasses

import pytest
from studies.test_deep_nets import SHORT_NETS
from test_readme import PAGES, fences

from condnum.figures import deep_attacks as figures
from condnum.methods import METHODS
from condnum.page import deep as report
from condnum.page.tables import GAP, as_html
from condnum.studies.deep_attackers import DeepAttackers

SHORT = DeepAttackers(
    "embedded",
    epochs=6,
    attackers=("head-sgd", "ridge"),
    shots=(6, 0),
    steps=4,
    trials=1,
    test_images=60,
    **SHORT_NETS,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A short run with its store; the second method is that of the guide, in a file of its own."""
    folder = tmp_path_factory.mktemp("attacks")
    file = tmp_path_factory.mktemp("own") / "log_kappa.py"
    file.write_text(fences(PAGES["condnum/site/pages/howto/own_study.md"], "python")[0], encoding="utf-8")
    run = dataclasses.replace(SHORT, methods=("ours", str(file))).run(out=folder, jobs=1)
    run.save(folder)
    yield run, folder
    METHODS.pop("log_kappa")


class TestRun:
    def test_fresh_images_are_none_of_those_that_immunization_took(self):
        data = SHORT.load()
        fresh = SHORT.unused(data)
        assert not set(fresh.positions) & set(data.harmful.positions)
        assert fresh.counts == data.harmful.counts
        assert fresh.split == "train"

    def test_a_method_of_a_file_is_in_every_table_and_figure(self, finished):
        run, _ = finished
        assert run.failures.empty
        tables = run.tables
        assert {"ours", "log_kappa"} <= {*tables["results"]["net"]} & {*tables["immunization"]["method"]}
        for table in (
            report.factor_table(tables["factors"]),
            report.net_table(tables["immunization"], convention="compact"),
        ):
            assert "Log κ" in as_html(table).replace(GAP, " ")
        assert "Log κ" in str(figures.protection_figure(tables["factors"], "data"))
        passes = report.pass_table(tables["sgrc"])  # of 4 steps of a head, one is at a horizon
        assert set(passes["attacker"]) == {"new head, SGD"}
        assert list(passes.columns[3:]) == ["after 1 pass"]

    def test_models_of_a_folder_are_attacked_alike(self, finished, tmp_path):
        run, folder = finished
        given = dataclasses.replace(SHORT, models=str(folder), methods=(), attackers=("ridge",)).run(
            out=tmp_path, jobs=1
        )
        columns = ["net", "shots", "final_accuracy", "benign_accuracy"]
        mine = run.tables["results"].query("attacker == 'ridge'")[columns].reset_index(drop=True)
        assert given.tables["results"][columns].reset_index(drop=True).equals(mine)
        assert not list(tmp_path.glob("*.safetensors"))

    def test_attackers_in_closed_form_alone_have_tables_figures_and_sentences(self, finished):
        folder = str(finished[1])
        run = dataclasses.replace(SHORT, models=folder, methods=(), attackers=("ridge", "fresh-ridge")).run(
            jobs=1
        )
        tables = run.tables
        best = tables["results"].query("net == 'ours'")["final_accuracy"].max()
        assert report.verdict(tables["factors"], tables["immunization"]).count("<p>") == 2
        drawn = figures.protection_figure(tables["factors"], "data")
        assert "as those in closed form take none" in drawn.layout.title.text
        shown = report.defense_table(tables["results"]).set_index("net")
        assert f"{100 * best:.1f}" in shown.to_string()
        assert shown["ridge regression, solved"].str.contains("one seed").all()
