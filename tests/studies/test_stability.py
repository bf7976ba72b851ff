"""Claims over settings: what is known of committed runs is found again; planted flips; nets run once more."""

import gzip
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from condnum.deep.rir_convergence import convergence_sentence, rir_convergence
from condnum.errors import CondnumError
from condnum.figures.stability import convergence_figure, stability_map
from condnum.files import RECORD
from condnum.studies.deep_nets import DeepNets
from condnum.studies.digit_pairs import DigitPairs
from condnum.studies.measure import SPECTRA, TABLE_2
from condnum.studies.run_verdicts import AXES, FIXED, RunFolder, run_verdicts, spectral_verdicts
from condnum.studies.stability import (
    Claim,
    StabilityStudy,
    claim_stability,
    default_setting,
    in_words,
    run_sentences,
    setting_verdicts,
)

REPORTS = Path(__file__).resolve().parents[2] / "reports"


def judged(*folders, **options):
    study = StabilityStudy(tuple(map(str, folders)), **options)
    return study, study.run(jobs=1)


def counts(run, claim, axis):
    """Cells that agree with a claim, of how many, by the values of an axis."""
    rows = run.by_axis.query("claim == @claim and axis == @axis")
    return {row.value: (row.agree, row.cells) for row in rows.itertuples()}


def kept(run, folder, **parameters):
    """Save a run as the command line does: tables, and the record of its parameters and data."""
    run.save(folder)
    known = {"parameters": {**asdict(run.study), **parameters}, "data": getattr(run.data, "checksums", {})}
    (folder / RECORD).write_text(json.dumps(known))
    return folder


def test_what_is_known_of_the_committed_runs_is_found_again():
    _, run = judged(REPORTS / "mnist", REPORTS / "house_prices")
    mnist = "ours meets (i) > 1 and (ii) ≤ 1"
    both = run.by_axis
    run.tables["by_axis"] = both[both["experiment"] == "mnist"]
    assert counts(run, mnist, "rtol") == {"1e-15": (270, 270), "default": (265, 270), "1e-10": (116, 270)}
    assert counts(run, mnist, "scale") == {"unit": (270, 270), "as_trained": (164, 270)}
    run.tables["by_axis"] = both[both["experiment"] == "house_prices"]
    opt_kappa = counts(run, "opt_kappa meets (i) > 1 and (ii) ≤ 1", "convention")
    assert opt_kappa == {"compact": (0, 5), "ridge": (10, 10)}  # ridge: θ at unit scale and as trained
    said = run.claims.set_index(["experiment", "claim"])["sentence"]
    assert said["mnist", mnist] == (
        "stands in 80 % of 15 settings; flips at rtol 1e-10 (compact): 37 of 90 cells agree"
    )
    assert said["house_prices", "ours has the largest RIR of 4 methods"] == "stands in all 15 settings"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Two pairs of digits, run with two budgets, each in its folder."""
    base, study = tmp_path_factory.mktemp("runs"), DigitPairs(pairs=((4, 7), (9, 0)), seeds=1, epochs=5)
    return [kept(replace(study, epochs=epochs).run(jobs=1), base / f"epochs-{epochs}") for epochs in (5, 9)]


def test_spectra_give_what_the_run_measured_one_cell_after_the_other(digits):
    run = RunFolder.read(digits[0])
    found, said = run_verdicts(run)
    assert said == []
    key = ["method", "seed", "cell", "convention", "rtol", "epsilon", "scale"]
    (digits[0] / "spectra.npz").rename(digits[0] / "away")
    tabled, said = run_verdicts(run)
    (digits[0] / "away").rename(digits[0] / "spectra.npz")
    assert "spectra.npz" in said[0]
    both = found.merge(tabled, on=key, suffixes=("", "_run"))
    assert len(both) == len(tabled) == 2 * 6 * (3 + 5 + 1)  # 3 tolerances; 5 ε at unit scale, one as trained
    np.testing.assert_allclose(both["rir"], both["rir_run"], rtol=1e-12)
    assert both["success"].tolist() == both["success_run"].astype(bool).tolist()


def test_runs_of_two_budgets_are_one_experiment(digits):
    _, run = judged(*digits)
    assert run.claims["experiment"].unique().tolist() == ["epochs-5"]
    assert set(run.claims["settings"]) == {2 * 15}
    assert counts(run, "imma misses (i) > 1 and (ii) ≤ 1", "budget").keys() == {"5", "9"}
    _, one = judged(digits[0])
    assert set(one.claims["settings"]) == {15}
    said = one.claims.set_index("claim")["sentence"]
    assert run_sentences(digits[0], TABLE_2)["ours", "meets"] == said["ours meets (i) > 1 and (ii) ≤ 1"]


def planted(last):
    """One cell: θ makes D_P perfect and D_H worse; a last eigenvalue of D_P after θ is that small."""
    one = {
        "pretrain_before": [1.0, 0.1], "pretrain_after": [1.0, 1.0, last],
        "harmful_before": [1.0, 0.5], "harmful_after": [1.0, 0.25],
    }  # fmt: skip
    row = {"method": "ours", "seed": 0, "dimension": 9, "squared_norm": 9.0, "loss_gap": 0.0}
    return pd.DataFrame([row | {name: np.pad(one[name], (0, 9 - len(one[name]))) for name in SPECTRA}])


@pytest.mark.parametrize(("last", "stands"), [(1e-11, ["1e-10", "1e-08"]), (1e-9, ["1e-08"]), (1e-20, None)])
def test_a_planted_eigenvalue_decides_by_the_rank_tolerance(last, stands):
    table = spectral_verdicts(planted(last)).assign(budget="own")
    verdicts = setting_verdicts(table, Claim("ours", "meets"))
    compact = verdicts[verdicts["convention"] == "compact"].set_index("rtol")["stands"]
    assert compact[compact].index.tolist() == (stands or ["1e-15", "default", "1e-12", "1e-10", "1e-08"])
    stability = claim_stability(table, Claim("ours", "meets"), default_setting(table, "deep"))
    assert stability.default["rtol"] == "default"
    if stands is None:
        flips = "flips at ridge convention"  # σ_D = 0 before and after, so that (i) does not rise
        assert flips in stability.sentence
    else:
        assert f"not in the default one; it does at rtol {stands[0]} (compact)" in stability.sentence


def test_the_nearest_flip_changes_fewest_axes_then_goes_fewest_steps():
    base = FIXED | {"convention": "ridge", "seed": 0, "cell": "", "method": "ours", "rir": 1.0}

    def table(*flipped):
        changes = [{}, *({"epsilon": e} for e in ("1e-09", "0.001", "1", "1000")), {"seed": 1}, {"seed": 2}]
        rows = [base | change | {"success": change not in flipped} for change in changes]
        return pd.DataFrame(rows)

    def turn(*flipped):
        found = table(*flipped)
        return claim_stability(found, Claim("ours", "meets"), default_setting(found, "pair")).turn

    assert turn({"epsilon": "1000"}, {"epsilon": "1"}) == "ε 1 (ridge)"
    assert turn({"seed": 2}, {"epsilon": "1000"}) == "seed 2"
    assert turn() == ""
    none = claim_stability(table(), Claim("ours", "meets", expected=False), base)
    assert none.sentence == "stands in none of 7 settings"
    assert claim_stability(table(), Claim("imma", "meets"), base) is None
    assert all(in_words(axis, {"scale": "unit", "budget": "own"}.get(axis, 1)) for axis in AXES)


DEEP = DeepNets(
    "embedded", backbone=("test_resnet",), methods=("ours",), seeds=1, epochs=2, pretrain_epochs=1, limit=60,
    groups=3, group_size=40, probe_epochs=1, image_size=16, device="cpu",
)  # fmt: skip


@pytest.mark.slow
def test_the_nets_of_a_finished_run_are_run_once_more(tmp_path):
    """At the run's own size the draws are those of the run; its cells, which commands remove, are unused."""
    place = tmp_path / "deep"
    done = DEEP.run(out=place, jobs=1)
    kept(done, place)
    (place / "cells").rename(tmp_path / "gone")
    study, run = judged(place)
    assert study.left_out(run.data, run.cells) == []
    ours = done.results.query("method == 'ours'").set_index("convention")
    (table,) = (found.verdicts for found in study.experiments(run.data, run.cells))
    own = table.query("group_size == 40 and rtol == 'default' and epsilon == '1e-06' and scale == 'unit'")
    for convention in ("compact", "ridge"):
        for prefix, part in {"": "training", "test_": "test"}.items():
            drawn = own[(own["convention"] == convention) & (own["images"] == part)].set_index("draw")["rir"]
            known = [ours.loc[convention, f"{prefix}rir{of}"] for of in ("", "_least_draw", "_largest_draw")]
            np.testing.assert_allclose([drawn[0], drawn.min(), drawn.max()], known, rtol=1e-5)
    assert {"images", "group_size", "draw", "rtol"} <= set(run.by_axis["axis"])
    without, fewer = judged(place, nets=False)
    assert "were not asked for" in without.left_out(fewer.data, fewer.cells)[-1]
    assert fewer.claims["settings"].iloc[0] < run.claims["settings"].iloc[0]
    (place / "theta_I.safetensors").unlink()
    assert "theta_I.safetensors" in " ".join(study.left_out(study.load(), []))
    settled = run.convergence.query("images == 'training'")
    assert convergence_sentence(settled).startswith("Within ± 10 %")
    assert len(convergence_figure(settled, "digits").data) == 2 * settled["group_size"].nunique()
    fewer = settled[settled["group_size"] < settled["group_size"].max()].assign(run="fewer images")
    figure = convergence_figure(pd.concat([settled, fewer]), "two runs: a panel each, a legend for both")
    shown = [line.name for line in figure.data if line.showlegend]
    assert len(figure.layout.annotations) == 2
    assert len(shown) == len(set(shown)) == settled["group_size"].nunique() + 1
    some = [cell for cell in run.cells if "backbone" not in cell.cell.at]
    assert "deep: its nets are not run again: some of them failed" in study.left_out(run.data, some)
    assert stability_map(run.by_axis, {}, "digits").data[0].z.shape[0] == len(run.claims)


def test_luck_of_the_draw_shrinks_with_the_number_of_groups():
    """θ_I divides the second feature on D_H by one random number an image: RIR of a group scatters."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(3000, 2))
    after = X * np.column_stack([np.ones(3000), 0.1 * np.exp(generator.normal(size=3000))])
    table = rir_convergence((X, X, X, after), draws=8)
    spread = (table["largest"] / table["least"] - 1).groupby(table["groups"]).mean()
    assert spread[80] < spread[20] < spread[2]
    last = table.iloc[-1]
    assert (last["group_size"], last["groups"], last["least"]) == (3000, 1, last["largest"])
    said = convergence_sentence(table)
    assert "groups of 25" in said
    assert f"{last['median']:.3g} on all 3000 images at once" in said


@pytest.mark.parametrize(
    ("folders", "words"),
    [
        ((), "give their folders, such as --runs"),
        (("nowhere",), "nowhere holds no results.csv"),
        ((str(REPORTS / "attackers" / "house_prices"),), "are of another experiment: they lack"),
    ],
    ids=["none", "no folder", "another experiment"],
)
def test_what_cannot_be_judged_is_refused(folders, words):
    with pytest.raises(CondnumError, match=words):
        StabilityStudy(folders).load()


def test_a_damaged_record_no_rows_and_nothing_but_controls_are_named(tmp_path):
    table = pd.read_csv(REPORTS / "house_prices" / "results.csv")
    table[:0].to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(CondnumError, match="have no rows"):
        RunFolder.read(tmp_path)
    table.query("method == 'identity'").to_csv(tmp_path / "results.csv", index=False)
    with pytest.raises(CondnumError, match="nothing is claimed of the methods"):
        _ = judged(tmp_path)[1].claims
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(CondnumError, match=r"provenance.json is damaged"):
        RunFolder.read(tmp_path)
    packed = gzip.compress((tmp_path / "results.csv").read_bytes())
    (tmp_path / "results.csv").unlink()
    (tmp_path / "results.csv.gz").write_bytes(packed[:-9])
    with pytest.raises(CondnumError, match=r"results.csv.gz is damaged"):
        RunFolder.read(tmp_path)
