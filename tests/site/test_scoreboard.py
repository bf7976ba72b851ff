"""Verdicts against hand-worked numbers, and the scoreboard on tables of real runs."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum.experiments.published import TABLE_1, TABLE_2, TABLE_3, Published
from condnum.site.claims import claims
from condnum.site.result import read_result
from condnum.site.scoreboard import scoreboard, tally
from condnum.site.verdict import compare, tolerance

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

    def make(*runs):
        results = []
        for study, folder in runs:
            target = write_run(tmp_path / study)
            for path in (REPORTS / folder).glob("*.csv*"):
                shutil.copy(path, target)
            results.append(read_result(entry(study, f"condnum run {study}"), tmp_path))
        return {section.key: section for section in scoreboard(results)}

    return make


def test_house_prices_against_table_1(board):
    sections = board(("house-prices", "house_prices"))
    scores = dict(sections["table-1"].rows)
    summary = pd.read_csv(REPORTS / "house_prices" / "summary.csv")
    row = summary.query("method == 'ours' and convention == 'ridge' and gauge == 'as_trained'").iloc[0]
    rir = scores["Ours\u00a0(Algorithm\u00a01)"][2]
    assert rir.published == "356.2 ± 5.491"
    assert rir.obtained.startswith(f"{row['rir_mean']:,.0f} ± ")
    assert rir.verdict.text == f"higher ×{float(row['rir_mean'] / TABLE_1['ours'].rir):.3g}"
    r_ill = next(value for name, value in scores.items() if "ill" in name)[2]
    assert (r_ill.verdict.kind, r_ill.verdict.reason) == ("agrees", "within ± 0.249")
    largest = sections["table-1"].claims[0]
    assert largest.standing == "holds"
    assert sections["table-2"].run is None
    assert {score.verdict.kind for _, row in sections["table-2"].rows for score in row} == {"not run"}


def test_embedded_digits_are_other_data(board):
    section = board(("digits", "digits"))["table-2"]
    assert section.data == "digits-8x8"
    assert {score.verdict.kind for _, row in section.rows for score in row} == {"other data"}
    assert all(score.obtained for _, row in section.rows for score in row)
    assert len(section.claims) == 5


def test_a_part_of_the_pairs_is_not_the_published_mean(board, monkeypatch):
    real = pd.read_csv

    def fewer(path, **options):
        table = real(path, **options)
        return table.assign(pairs=2) if "pairs" in table else table

    monkeypatch.setattr(pd, "read_csv", fewer)
    section = board(("mnist", "mnist"))["table-2"]
    verdicts = {score.verdict for _, row in section.rows for score in row}
    assert {(verdict.kind, verdict.reason) for verdict in verdicts} == {("other data", "only 2 of 90 pairs")}


def test_mnist_against_table_2(board):
    section = board(("mnist", "mnist"))["table-2"]
    ours = next(row for name, row in section.rows if name.startswith("Ours"))
    assert ours[2].verdict.text == f"higher ×{99.4429 / TABLE_2['ours'].rir:.3g}"


def test_deep_nets_of_other_data_stand_beside_the_nearer_architecture(board):
    sections = board(("deep", "deep/mnist"))
    nets = [section for section in sections.values() if section.run is not None]
    assert [section.title for section in nets] == [
        "Table 3, resnet18 beside the published ResNet18, ImageNet–Cars",
        "Table 3, vit_tiny_patch16_224 beside the published ViT, ImageNet–Cars",
    ]
    ours = next(row for name, row in nets[0].rows if name.startswith("Ours"))
    assert [score.verdict.kind for score in ours] == ["other data"] * 4
    assert ours[2].published == "3.467 ± 0.358"
    assert ours[3].obtained.startswith("98.")
    assert len(sections["table-3"].columns) == len(TABLE_3)  # none of the published settings ran


def test_tally_counts_every_number(board):
    sections = list(board(("house-prices", "house_prices"), ("mnist", "mnist")).values())
    text = tally(sections)
    total = sum(len(row) for section in sections for _, row in section.rows)
    assert total == 12 + 12 + 16
    assert text.startswith(f"Of {total} published numbers ")
    counted = [int(word) for word in text.split(".")[0].replace(",", "").split() if word.isdigit()]
    assert sum(counted[1:]) == total
    assert np.isin(16, counted)  # Table 3: not run


def test_nothing_ran():
    sections = scoreboard([])
    assert [section.run for section in sections] == [None, None, None]
    assert all(row[1][0].verdict.reason for section in sections for row in section.rows)
