"""Verdicts against hand-worked numbers, and the scoreboard on tables of real runs."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from condnum.report.scoreboard import claims, compare, read_result, scoreboard, tally, tolerance
from condnum.studies.measure import TABLE_1, TABLE_2, Published

REPORTS = Path(__file__).resolve().parents[2] / "reports"


@pytest.mark.parametrize(
    ("published", "deviation", "obtained", "text"),
    [
        (10.0, 0.1, 12.0, "agrees"),  # exactly 20 %
        (10.0, 0.1, 12.01, "higher ×1.2"),
        (10.0, 2.0, 6.0, "agrees"),  # exactly two deviations
        (10.0, 2.0, 5.0, "lower ×2"),
        (10.0, float("nan"), 8.5, "agrees"),
        (10.0, 1.0, 0.0, "lower ×∞"),
        (10.0, 1.0, float("nan"), "not finite"),
    ],
)
def test_verdict(published, deviation, obtained, text):
    assert compare(published, deviation, obtained).text == text


def test_tolerance_is_the_larger_of_both():
    assert tolerance(10.0, 3.0) == pytest.approx(6.0)
    assert tolerance(10.0, 0.5) == pytest.approx(2.0)


def cells(rir: dict[str, list[float]], success: dict[str, list[bool]]) -> pd.DataFrame:
    rows = []
    for convention in ("ridge", "compact"):
        for method, values in rir.items():
            for seed, value in enumerate(values):
                rows.append(
                    {
                        "method": method,
                        "seed": seed,
                        "convention": convention,
                        "gauge": "unit",
                        "rir": value,
                        "success": success[method][seed],
                    }
                )
    return pd.DataFrame(rows)


PUBLISHED = {
    "imma": Published(7.0, 1.0, 3.5, 0.9, 2.0, 0.2),
    "ours": Published(18.9, 2.0, 0.05, 0.002, 356.0, 5.0),
}


def test_claims_are_counted_by_seed_and_cell():
    table = cells({"ours": [5.0, 1.0], "imma": [2.0, 2.0]}, {"ours": [True, False], "imma": [False, False]})
    largest, imma, ours = claims(PUBLISHED, table)
    assert largest.answers["ridge"].startswith("1 of 2 seeds: RIR 3 against 2 (IMMA)")
    assert largest.standing == "does not hold"  # half of the cells of both
    assert (imma.answers["ridge"], imma.standing) == ("2 of 2 cells", "holds")
    assert (ours.answers["compact"], ours.standing) == ("1 of 2 cells", "does not hold")
    table.loc[table["convention"] == "ridge", "success"] = table["method"] == "ours"
    assert claims(PUBLISHED, table)[2].standing == "in part"


def test_claims_need_the_methods_and_ignore_the_gauge_as_trained():
    table = cells({"ours": [5.0]}, {"ours": [True]})
    extra = table.assign(gauge="as_trained", success=False)
    (only,) = claims(PUBLISHED, pd.concat([table, extra]))
    assert only.standing == "holds"
    assert claims(PUBLISHED, table[:0]) == []


@pytest.fixture
def board(entry, write_run, tmp_path):
    """`board(("house-prices", "house_prices"))`: the scoreboard of committed results of real runs."""

    def make(*runs, data=None):
        results = []
        for study, folder in runs:
            target = write_run(tmp_path / study, **({} if data is None else {"data": data}))
            for path in (REPORTS / folder).glob("*.csv*"):
                shutil.copy(path, target)
            results.append(read_result(entry(study, f"condnum run {study}"), tmp_path))
        return {section.key: section for section in scoreboard(results)}

    return make


def scores(section, method):
    return next(line.scores for line in section.lines if line.method.startswith(method))


def test_house_prices_against_table_1(board):
    section = board(("house-prices", "house_prices"))["table-1"]
    summary = pd.read_csv(REPORTS / "house_prices" / "summary.csv")
    row = summary.query("method == 'ours' and convention == 'ridge' and gauge == 'as_trained'").iloc[0]
    assert section.lines[0].method == "Ours\u00a0(Algorithm\u00a01)"
    rir = scores(section, "Ours")["rir"]
    assert rir.published == "356.2 ± 5.491"
    assert rir.obtained.startswith(f"{row['rir_mean']:,.0f} ± ")
    assert rir.verdict.text == f"higher ×{float(row['rir_mean'] / TABLE_1['ours'].rir):.3g}"
    r_ill = scores(section, "R")["rir"]
    assert (r_ill.verdict.kind, r_ill.verdict.reason) == ("agrees", "within ± 0.249")
    assert section.claims[0].standing == "holds"
    assert (section.comparable, section.differs) == (True, "")  # the same table, five seeds
    budgets = {line.method: line.budget for line in section.lines}
    assert budgets["IMMA"] == "1,000 full-batch steps"
    assert section.lines[0].budget.startswith("12,000 full-batch steps; λ balanced")


def test_embedded_digits_are_other_data(board):
    section = board(("digits", "digits"))["table-2"]
    assert section.data == "diabetes"  # of the fixture's provenance: what the run says of itself
    assert not section.comparable
    assert section.differs.startswith("other data than the paper's")
    assert {score.verdict for line in section.lines for score in line.scores.values()} == {None}
    assert len(section.claims) == 5


def test_a_part_of_the_pairs_is_compared_and_says_that_it_is_a_part(board, monkeypatch):
    real = pd.read_csv

    def fewer(path, **options):
        table = real(path, **options)
        return table.assign(pairs=20, seeds=1) if "rir_mean" in table else table

    monkeypatch.setattr(pd, "read_csv", fewer)
    section = board(("mnist", "mnist"), data="mnist, 10,000 test images, condnum's box")["table-2"]
    assert section.differs == (
        "the 10 000 test images, where the paper takes the 60 000 training images; "
        "20 of the 90 ordered pairs of digits; 1 seed instead of 3"
    )
    assert scores(section, "Ours")["rir"].verdict.kind == "higher"


def test_mnist_against_table_2(board):
    section = board(("mnist", "mnist"))["table-2"]
    assert scores(section, "Ours")["rir"].verdict.text == f"higher ×{99.4429 / TABLE_2['ours'].rir:.3g}"
    assert section.differs == ""


def test_deep_nets_of_other_data_stand_last_beside_the_nearer_architecture(board):
    sections = board(("deep", "deep/mnist"), ("house-prices", "house_prices"))
    assert [section.title for section in sections.values()] == [
        "Table 1, house prices, linear extractor",
        "Table 3, resnet18 beside the published ResNet18, ImageNet–Cars",
        "Table 3, vit_tiny_patch16_224 beside the published ViT, ImageNet–Cars",
    ]
    net = sections["table-3-deep-1"]
    ours = scores(net, "Ours")
    assert {score.verdict for score in ours.values()} == {None}
    assert ours["rir"].published == "3.467 ± 0.358"
    assert ours["accuracy"].obtained.startswith("98.")
    assert net.lines[0].budget == "300 steps"


def test_tally_counts_every_number_on_the_papers_data(board):
    runs = ("house-prices", "house_prices"), ("mnist", "mnist"), ("deep", "deep/mnist")
    text = tally(list(board(*runs).values()))
    counted = [int(word) for word in text.split(". ")[0].replace(",", "").split() if word.isdigit()]
    assert counted[0] == sum(counted[1:]) == 12 + 12
    assert "Of 10 claims" in text


def test_nothing_ran():
    assert scoreboard([]) == []
    assert tally([]) == ""
