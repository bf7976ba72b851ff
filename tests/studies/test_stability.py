"""Claims over settings: what is known of committed runs is found again; planted flips; refused folders."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum.errors import CondnumError
from condnum.studies.run_verdicts import AXES, FIXED, spectral_verdicts
from condnum.studies.stability import (
    MethodClaim,
    claim_stability,
    default_setting,
    in_words,
    setting_verdicts,
    stability,
)

REPORTS = Path(__file__).resolve().parents[2] / "reports"


def judged(*folders):
    return stability(folders).tables


def test_what_is_known_of_the_committed_runs_is_found_again():
    tables = judged(REPORTS / "mnist", REPORTS / "house_prices")

    def counts(experiment, claim, axis):
        """Cells that agree with a claim, of how many, by the values of an axis."""
        rows = tables["by_axis"].query("experiment == @experiment and claim == @claim and axis == @axis")
        return {row.value: (row.agree, row.cells) for row in rows.itertuples()}

    mnist = "ours meets (i) > 1 and (ii) ≤ 1"
    rtols = {"1e-15": (270, 270), "default": (265, 270), "1e-10": (116, 270)}
    assert counts("mnist", mnist, "rtol") == rtols
    assert counts("mnist", mnist, "scale") == {"unit": (270, 270), "as_trained": (164, 270)}
    opt_kappa = counts("house_prices", "opt_kappa meets (i) > 1 and (ii) ≤ 1", "convention")
    assert opt_kappa == {"compact": (0, 5), "ridge": (10, 10)}  # ridge: θ at unit scale and as trained
    said = tables["claims"].set_index(["experiment", "claim"])["sentence"]
    flips = "flips at rtol 1e-10 (compact): 37 of 90 cells agree"
    assert said["mnist", mnist] == f"stands in 80 % of 15 settings; {flips}"
    assert said["house_prices", "ours has the largest RIR of 4 methods"] == "stands in all 15 settings"


def planted(last):
    """One cell: θ makes D_P perfect and D_H worse; its last eigenvalue on D_H is that small."""
    spectra = {
        "pretrain_before": [1.0, 0.1, 0.1], "pretrain_after": [1.0, 1.0, 1.0],
        "harmful_before": [1.0, 0.5, 0.5], "harmful_after": [1.0, 0.25, last],
    }  # fmt: skip
    row = {"method": "ours", "seed": 0, "dimension": 3, "squared_norm": 3.0, "loss_gap": 0.0}
    return pd.DataFrame([row | {name: np.array(of) for name, of in spectra.items()}])


@pytest.mark.parametrize(
    ("last", "stands", "flip"),
    [
        (1e-11, ["1e-15", "default", "1e-12"], "flips at rtol 1e-10 (compact)"),
        (1e-9, ["1e-15", "default", "1e-12", "1e-10"], "flips at rtol 1e-08 (compact)"),
        (1e-20, [], "not in the default one; it does at ridge convention"),  # a lost rank meets nothing
    ],
)
def test_a_planted_eigenvalue_decides_by_the_rank_tolerance(last, stands, flip):
    table = spectral_verdicts(planted(last))
    verdicts = setting_verdicts(table, MethodClaim("ours", "meets"))
    compact = verdicts[verdicts["convention"] == "compact"].set_index("rtol")["stands"]
    assert compact[compact].index.tolist() == stands
    stability = claim_stability(table, MethodClaim("ours", "meets"), default_setting(table, "deep"))
    assert stability.default["rtol"] == "default"
    assert flip in stability.sentence


def test_the_nearest_flip_changes_fewest_axes_then_goes_fewest_steps():
    base = FIXED | {"convention": "ridge", "seed": 0, "cell": "", "method": "ours", "rir": 1.0}

    def table(*flipped):
        changes = [{}, *({"epsilon": e} for e in ("1e-09", "0.001", "1", "1000")), {"seed": 1}, {"seed": 2}]
        rows = [base | change | {"success": change not in flipped} for change in changes]
        return pd.DataFrame(rows)

    def turn(*flipped):
        found = table(*flipped)
        return claim_stability(found, MethodClaim("ours", "meets"), default_setting(found, "pair")).turn

    assert turn({"epsilon": "1000"}, {"epsilon": "1"}) == "ε 1 (ridge)"
    assert turn({"seed": 2}, {"epsilon": "1000"}) == "seed 2"
    assert turn() == ""
    none = claim_stability(table(), MethodClaim("ours", "meets", expected=False), base)
    assert none.sentence == "stands in none of 7 settings"
    assert claim_stability(table(), MethodClaim("imma", "meets"), base) is None
    assert all(in_words(axis, {"scale": "unit"}.get(axis, 1)) for axis in AXES)


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        ((), "runs is empty; give folders"),
        (("nowhere",), "nowhere has no results.csv"),
        ((str(REPORTS / "attackers" / "house_prices"),), "belong to another experiment, because they lack"),
    ],
    ids=["none", "no folder", "another experiment"],
)
def test_what_cannot_be_judged_is_refused(folders, words):
    with pytest.raises(CondnumError, match=words):
        stability(folders)
