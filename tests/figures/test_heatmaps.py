"""Heatmaps of digit pairs: values by hand, one symmetric scale, crosses where a seed fails."""

import json
import math

import numpy as np
import pandas as pd
import plotly.colors
import pytest

from condnum import figures as plots
from condnum.errors import InvalidInputError
from condnum.figures.pairs import PAIR_COLUMNS


def row(method, seed, pair, rir, *, success=True, convention="ridge", theta_scale="unit", rank=60):
    """One row; ratio (i) is 2·rir, ratio (ii) is 2."""
    values = [method, seed, *pair, convention, theta_scale, 2 * rir, 2.0, rir, success, rank, 61]
    return dict(zip(PAIR_COLUMNS, values, strict=True))


@pytest.fixture
def results():
    rows = [
        row("ours", 0, (3, 8), math.e**2),
        row("ours", 1, (3, 8), math.e**4, rank=62),
        row("ours", 0, (0, 1), math.e**-1, success=False),
        row("ours", 1, (0, 1), math.e**-1),
        row("imma", 0, (3, 8), math.e**-5, success=False),
        row("imma", 1, (3, 8), math.e**-5, success=False),
        row("ours", 0, (3, 8), 7.0, convention="compact"),
        row("ours", 1, (3, 8), 7.0, convention="compact"),
    ]
    return pd.DataFrame(rows)


def panel(figure, index):
    """Grey cells and coloured cells of a panel."""
    return figure.data[2 * index : 2 * index + 2]


def texts_of(trace):
    """The texts of the cells that are drawn, by (pretrain, harmful)."""
    drawn = np.argwhere(np.isfinite(np.asarray(trace.z, dtype=float)))
    return {(int(p), int(h)): trace.text[p][h] for p, h in drawn}


def crossed(trace):
    """The drawn cells with a cross."""
    return {cell for cell, text in texts_of(trace).items() if "✕" in text}


def test_cells_are_means_of_ln_rir_with_rows_for_pretraining(results):
    figure = plots.pair_heatmaps(results, "toy")
    _, ours = panel(figure, 0)
    z = np.asarray(ours.z, dtype=float)
    assert z.shape == (10, 10)
    assert z[3, 8] == pytest.approx(3)  # (2 + 4) / 2
    assert z[0, 1] == pytest.approx(-1)
    assert np.isfinite(z).sum() == 2
    assert texts_of(ours) == {(3, 8): "3.0", (0, 1): "−1.0<sup>✕</sup>"}  # which fails in one seed
    assert ours.texttemplate == "%{text}"
    assert list(ours.customdata[3][8]) == [3, 8]
    assert crossed(panel(figure, 1)[1]) == {(3, 8)}
    unknown = results.astype({"success": object})
    unknown.loc[0, "success"] = None  # a missing verdict is no success
    assert crossed(panel(plots.pair_heatmaps(unknown, "toy"), 0)[1]) == {(0, 1), (3, 8)}


def test_one_scale_symmetric_around_zero(results):
    figure = plots.pair_heatmaps(results, "toy")
    scale = figure.layout.coloraxis
    assert (scale.cmin, scale.cmid, scale.cmax) == (pytest.approx(-5), 0, pytest.approx(5))
    assert scale.colorbar.title.text == "ln RIR"
    assert {panel(figure, i)[1].coloraxis for i in range(2)} == {"coloraxis"}
    low, high = (plotly.colors.unlabel_rgb(scale.colorscale[i][1]) for i in (0, -1))
    assert low[0] > low[2]  # red fails
    assert high[2] > high[0]  # blue immunizes
    assert plots.pair_heatmaps(results, "toy", limit=2.5).layout.coloraxis.cmin == pytest.approx(-2.5)


def test_titles_hold_mean_rir_over_pairs_and_std_over_seeds(results):
    results["rir"] = [10.0, 14, 20, 20, 1, 1, 7, 7]  # seed means of ours: 15 and 17
    figure = plots.pair_heatmaps(results, "toy")
    titles = [annotation.text for annotation in figure.layout.annotations]
    assert titles[0] == "<b>Ours (Algorithm 1)</b><br>RIR 16 ± 1.4, success 1 of 2"
    assert titles[1] == "<b>IMMA</b><br>RIR 1 ± 0, success 0 of 1"
    one = plots.pair_heatmaps(results[results["seed"] == 0], "toy", methods=["ours"])
    assert one.layout.annotations[0].text.endswith("RIR 15 (one seed), success 1 of 2")


def test_hover_has_every_convention_ranks_and_counts(results):
    hover = panel(plots.pair_heatmaps(results, "toy"), 0)[1].hovertext
    text = hover[3][8]
    assert "D<sub>P</sub>: digit 3, D<sub>H</sub>: digit 8" in text
    assert "succeeds in 2 of 2" in text
    assert "ridge κ, ‖θ‖ = √D (shown)</i><br>(i) 40.2, (ii) 2, RIR 20.1" in text  # 2e³, e³
    assert "compact κ</i><br>(i) 14, (ii) 2, RIR 7" in text
    assert "θ as trained</i>: not measured" in text
    assert "H<sub>P</sub> 60–62, H<sub>H</sub> 61" in text
    assert (
        hover[4][8]
        == "<b>D<sub>P</sub>: digit 4, D<sub>H</sub>: digit 8</b><br>Ours (Algorithm 1): no result"
    )
    assert "no pair" in hover[4][4]
    hover = panel(plots.pair_heatmaps(results.drop(index=1), "toy"), 0)[1].hovertext
    assert "1 of 2 seeds (the others have no result)" in hover[3][8]


@pytest.mark.parametrize(
    ("rir", "text", "words"),
    [
        (math.inf, "∞", "RIR is infinite in 1 of 2 seeds"),
        (0.0, "−∞", "RIR is zero in 1 of 2 seeds"),
        (math.nan, "NaN", "RIR is not a number in 1 of 2 seeds"),
    ],
    ids=["inf", "zero", "nan"],
)
def test_what_is_not_finite_is_grey_and_says_so(results, rir, text, words):
    results.loc[0, "rir"] = rir
    figure = plots.pair_heatmaps(results, "toy")
    grey, colored = panel(figure, 0)
    assert np.argwhere(np.isfinite(np.asarray(grey.z, dtype=float))).tolist() == [[3, 8]]
    assert np.isnan(np.asarray(colored.z, dtype=float)[3, 8])
    assert texts_of(grey)[3, 8] == text
    assert words in colored.hovertext[3][8]
    assert figure.layout.coloraxis.cmax == pytest.approx(5)  # IMMA's: the scale stays finite
    assert "1 not finite" in figure.layout.annotations[0].text


def test_nothing_finite_at_all(results):
    figure = plots.pair_heatmaps(results.assign(rir=math.nan), "toy")
    assert figure.layout.coloraxis.cmax == 1
    assert "<br>RIR (2 not finite), success" in figure.layout.annotations[0].text
    for trace in figure.data[:2]:
        json.dumps(trace.z.tolist(), allow_nan=False)  # gaps are null


@pytest.mark.parametrize(
    ("change", "options", "match"),
    [
        (lambda table: table, {"methods": []}, "methods is empty"),
        (
            lambda table: table,
            {"methods": ["our"]},
            "unknown method of the table 'our'.* Choices: ours, imma",
        ),
        (lambda table: table, {"limit": -1}, "limit must be positive and finite, got -1"),
        (lambda table: table, {"convention": "compact", "methods": ["imma"]}, "it has: ridge/unit"),
        (lambda table: table.drop(columns=["theta_scale"]), {}, "lacks the columns: theta_scale"),
        (lambda table: table.iloc[:0], {}, "has no rows"),
        (lambda table: table.assign(harmful_digit=10), {}, "harmful_digit must be one of 0 … 9, got 10"),
        (
            lambda table: table.assign(harmful_digit=3, pretrain_digit=3),
            {},
            r"different digits, got \(3, 3\)",
        ),
        (lambda table: pd.concat([table, table.iloc[:1]]), {}, r"two rows are of the same cell: .*'seed': 0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(results, change, options, match):
    with pytest.raises(InvalidInputError, match=match):
        plots.pair_heatmaps(change(results), "toy", **options)


def test_digits_without_a_pair_are_left_out_and_no_method_is():
    measured = {"convention": "ridge", "theta_scale": "unit", "harmful_ratio": 2.0, "pretrain_ratio": 1.0}
    ranks = {"success": True, "rank_pretrain": 64, "rank_harmful": 64, "seed": 0}
    rows = pd.DataFrame({"method": ["ours", "max_rir"], "rir": [10.0, 1e6]})
    figure = plots.pair_heatmaps(rows.assign(pretrain_digit=4, harmful_digit=9, **measured, **ranks), "toy")
    assert figure.layout.xaxis.range == (3.5, 9.5)
    assert len(list(figure.select_xaxes())) == 2
    assert figure.layout.coloraxis.cmax == pytest.approx(np.log(10))  # that of the comparable method


def test_few_pairs_are_dots_and_many_are_cells(results):
    results.loc[results["method"] == "imma", "rir"] = [0.0, math.inf]
    figure = plots.pair_figure(results, "toy")
    ours, imma, words, crosses = figure.data
    assert list(ours.x) == pytest.approx([math.e**-1, math.e**3])
    assert [list(pair) for pair in ours.customdata] == [[0, 1], [3, 8]]
    assert "succeeds in 2 of 2" in ours.text[1]
    assert figure.layout.yaxis.ticktext == ("0 → 1", "3 → 8")
    assert np.round(ours.y).tolist() == [0, 1]
    assert np.isnan(imma.x).all()
    assert (list(words.text), list(words.x)) == (["RIR NaN"], [1])  # the mean of ln 0 and ln ∞
    assert list(crosses.x) == pytest.approx([math.e**-1])  # one that cannot be drawn has no cross
    assert ours.name == "<b>Ours (Algorithm 1)</b>: RIR 15.68 ± 17, success 1 of 2"
    whole = pd.DataFrame([row("ours", 0, pair, 2.0) for pair in ((3, 4), (4, 3))])
    assert {trace.type for trace in plots.pair_figure(whole, "toy").data} == {"heatmap"}
