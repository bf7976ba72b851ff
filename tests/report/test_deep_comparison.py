"""Table 3 and its words: what is shown is what the summary says."""

import numpy as np
import pandas as pd
import pytest

from condnum.report.deep_comparison import (
    evidence_table,
    net_label,
    net_table,
    net_verdict,
    probe_table,
    published_note,
)


def row(method, convention, **values):
    base = {
        "backbone": "resnet<18>", "method": method, "convention": convention, "seeds": 3,
        "harmful_ratio_mean": 1.0, "harmful_ratio_std": 0.0, "pretrain_ratio_mean": 1.0,
        "pretrain_ratio_std": 0.0, "rir_mean": 1.0, "rir_std": 0.0, "accuracy_mean": 0.99,
        "accuracy_std": 0.001, "accuracy_theta_0_mean": 0.99, "probe_final_mean": 0.9,
        "probe_final_std": 0.01,
        "probe_mean_mean": 0.8, "probe_mean_std": 0.01, "convex_mean": 0.96, "convex_std": 0.0, "chance": 0.2,
        "success_rate": 0.0, "test_success_rate": 0.0, "published_same": False,
    }  # fmt: skip
    for name in ("harmful_ratio", "pretrain_ratio", "rir"):
        base |= {f"test_{name}_{part}": base[f"{name}_{part}"] for part in ("mean", "std")}
    for kind in ("", "test_"):
        base |= {
            f"{kind}rir_group_std_mean": 0.456,
            f"{kind}rir_least_draw": 0.9,
            f"{kind}rir_largest_draw": 1.1,
        }
    names = ("harmful_ratio", "pretrain_ratio", "rir", "accuracy")
    base |= {f"published_{n}{s}": np.nan for n in names for s in ("", "_std")}
    return base | values


def summary(**ours):
    rows = []
    for convention in ("compact", "ridge"):
        rows.append(row("initial", convention))
        rows.append(
            row(
                "ours", convention,
                **{
                    "harmful_ratio_mean": 8.0, "pretrain_ratio_mean": 0.5, "rir_mean": 16.0, "rir_std": 1.234,
                    "accuracy_mean": 0.95, "probe_final_mean": 0.4, "success_rate": 1.0, "convex_mean": 0.94,
                    "test_rir_mean": 5.0, "test_harmful_ratio_mean": 4.0, "test_success_rate": 2 / 3,
                    "published_rir": 3.467, "published_rir_std": 0.358, **ours,
                },
            )
        )  # fmt: skip
    return pd.DataFrame(rows)


def test_table_shows_obtained_beside_published():
    table = net_table(summary(), convention="compact")
    below = "<br><small>"
    head = f"RIR<sub>θ0</sub> ↑{below}training images<br>test images<br>published</small>"
    rir = [cell.split("<br>") for cell in table[head]]
    assert rir == [
        ["1", "1", "<small>—</small>"],
        ["16\u00a0±\u00a01.2", "5", "<small>3.467\u00a0±\u00a00.358</small>"],
    ]
    accuracy = table[f"D<sub>P</sub> test acc. (%) ↑{below}published</small>"]
    assert [cell.split(below)[0] for cell in accuracy] == ["99\u00a0±\u00a00.1", "95\u00a0±\u00a00.1"]
    counts = table[f"immunized{below}training images<br>test images</small>"]
    assert counts.tolist() == ["—<br>—", "3\u00a0of\u00a03<br>2\u00a0of\u00a03"]
    assert table["backbone"].iloc[0] == "resnet&lt;18&gt;"


def test_note_on_published_numbers_depends_on_whether_they_are_of_the_same_experiment():
    assert "for orientation only" in published_note(summary())
    same = published_note(summary().assign(published_same=True))
    assert "orientation" not in same
    assert "Table 3 for this backbone" in same


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "loses 4.0 points of D<sub>P</sub> test accuracy."),
        ({"accuracy_mean": 0.90}, "loses 9.0 points of D<sub>P</sub> test accuracy, more than the 5.9"),
        ({"accuracy_mean": 0.99}, "keeps D<sub>P</sub> test accuracy"),
        ({"accuracy_mean": 0.995}, "gains 0.5 points"),
        (
            {},
            "on training images (i) = 8, (ii) = 0.5, RIR 16 (± 0.46 over groups, 0.9 to 1.1 over draws of "
            "the groups): immunized in 3 of 3 seeds;",
        ),
        ({}, "RIR 5 (± 0.46 over groups, 0.9 to 1.1 over draws of the groups): immunized in 2 of 3 seeds"),
        ({"success_rate": 1 / 3}, "immunized in 1 of 3 seeds"),
        ({"test_pretrain_ratio_mean": 1.2}, "immunized in 2 of 3 seeds, <b>(ii) is above 1</b>."),
        ({}, "reaches 90.0 % on θ<sub>0</sub> and is lowest on Ours\u00a0(Algorithm\u00a01), 40.0 %"),
        ({"probe_final_mean": 0.93}, "no method lowers what plain gradient descent reaches"),
        ({}, "94.0 %, 2.0 points below θ<sub>0</sub>'s: so much is lost information"),
        ({"convex_mean": 0.97}, "97.0 %, no less than on θ<sub>0</sub>: an informed attacker loses nothing"),
    ],
)
def test_verdict(values, words):
    assert words in net_verdict(summary(**values))


def test_probe_table_is_in_percent():
    table = probe_table(summary())
    assert table["GD probe, last epoch (%)"].tolist() == ["90\u00a0±\u00a01", "40\u00a0±\u00a01"]
    assert table["commonest class (%)"].tolist() == ["20", "20"]


def test_evidence_table():
    results = pd.DataFrame(
        {
            "backbone": "net", "method": "ours", "convention": "compact", "group_size": 100, "dimension": 512,
            "rir": [4.0, 6.0], "rir_group_std": 1.0, "rir_least_draw": [3.0, 5.0], "rir_largest_draw": 7.0,
            "test_rir": 2.0, "test_rir_group_std": np.nan, "test_rir_least_draw": 1.5,
            "test_rir_largest_draw": 2.5, "rank_pretrain": [100, 99], "rank_harmful": 100,
            "kappa_pretrain_after": 10.0,
            "kappa_harmful_after": 20.0, "steps": 100, "best_step": [90, 100], "seconds": 2.0,
            "stop_reason": "early_stopping",
        }
    )  # fmt: skip
    (line,) = evidence_table(results).to_dict("records")
    assert line["samples × features"] == "100\u00a0×\u00a0512"
    assert line["rank H_P"] == "99\u00a0–\u00a0100"
    assert line["RIR ± over groups, draws"] == "5\u00a0±\u00a01, 3\u00a0–\u00a07"
    assert line["kept at step"] == "90\u00a0–\u00a0100"
    assert line["stopped by"] == "early stopping"


def test_label_of_a_name_that_the_registry_does_not_know():
    assert net_label("<b>") == "&lt;b&gt;"
