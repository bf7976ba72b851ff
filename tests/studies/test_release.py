"""The reproduction audit: the release's loop with its switches, both ends of the path, stages, tables."""

from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import torch

from condnum import ImmunizationProblem, immunize, r_ill, r_well
from condnum.data import load_diabetes_tasks, load_house_prices
from condnum.data.digits import load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import NAMED_SETTINGS
from condnum.studies.cells import Cell, CellResult
from condnum.studies.digit_pairs import SETTINGS as DIGIT_SETTINGS
from condnum.studies.digit_pairs import DigitPairs
from condnum.studies.house_prices import SETTINGS as HOUSE_SETTINGS
from condnum.studies.measure import cell_spectra
from condnum.studies.release import (
    OTHER_RIDGES,
    RESULT_COLUMNS,
    TEXTS,
    ReproductionAudit,
    landing_table,
    results_table,
    waterfall_table,
)
from condnum.studies.release_cells import (
    CORRECTED,
    SWITCHES,
    AuditData,
    PairedBatches,
    ProtocolSwitches,
    SwitchedAlgorithm1,
    compute_cell,
    first_rows,
    switched_tasks,
    train_cell,
    with_constant_input,
)
from condnum.theory.immunization import immunization_from_spectra
from condnum.theory.regularizers import r_ill_gradient, r_well_gradient
from condnum.theory.spectra import hessian

CORRECTED_FULL = ProtocolSwitches(**CORRECTED)
DIGITS = ReproductionAudit("digits:4-7", seeds=2, epochs=(1,), ends=(2,))


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(3)
    P, H = (torch.randn(rows, 7, generator=generator, dtype=torch.float64) for rows in (20, 12))
    return ImmunizationProblem.from_data(P, P[:, 0] - P[:, 1], H, H[:, 2])


@pytest.fixture
def theta():
    return torch.randn(7, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def planned(data, switches, seed=0, **overrides):
    """Data and cell of a setting."""
    loaded = data.load()
    settings = data.settings(switches, loaded).with_overrides(**overrides)
    at = {"switches": asdict(switches), "ridges": data.ridges, "seed": seed}
    return data, loaded, Cell(at, asdict(settings))


def trained(*setting, **overrides):
    """Result of a setting."""
    return train_cell(*planned(*setting, **overrides))[1]


def test_the_two_protocols_are_the_two_ends():
    released = turned = ProtocolSwitches()
    assert released.turned() == ()
    assert CORRECTED_FULL.turned() == SWITCHES == tuple(CORRECTED) == tuple(TEXTS)
    for name in SWITCHES:
        assert getattr(released, name) != CORRECTED[name]
        assert released.turn(name).turned() == (name,)
        turned = turned.turn(name)
    assert turned == CORRECTED_FULL
    switches = ProtocolSwitches()
    for name in ("bias", "preconditioner_side", "regularizer_dimension", "kappa_floor"):
        switches = switches.turn(name)
        assert not switches.is_algorithm_1
    assert switches.turn("covariance").is_algorithm_1


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["svhn"], UnknownNameError, "svhn"),
        (["mnist"], InvalidInputError, "come with a pair"),
        (["house-prices:4-7"], InvalidInputError, "tables without one"),
        (["digits:4-4"], InvalidInputError, "two different digits"),
        (["embedded", "/data"], InvalidInputError, "has no source '/data'"),
    ],
    ids=str,
)
def test_bad_data(words, error, message):
    with pytest.raises(error, match=message):
        AuditData.parse(*words)


def test_turned_switches_give_the_directions_of_the_library(problem, theta):
    # Forced through the general path, which `gradients` leaves to `Ours` when all are turned.
    method = SwitchedAlgorithm1(CORRECTED_FULL, image_side=None)
    well = r_well_gradient(hessian(theta, problem.pretrain.covariance))
    ill = r_ill_gradient(hessian(theta, problem.harmful.covariance), rank=problem.harmful.rank)
    torch.testing.assert_close(method.direction(problem.pretrain, theta, "well"), 2 * theta @ well.gradient)
    torch.testing.assert_close(method.direction(problem.harmful, theta, "ill"), 2 * theta @ ill.gradient)


@pytest.mark.parametrize("rows", [4, 12], ids=["fewer-rows-than-features", "more"])
@pytest.mark.parametrize("bias", ["with", "without"])
@pytest.mark.parametrize("part", ["well", "ill"])
def test_output_side_is_the_inverse_times_the_weights_gradient(problem, theta, rows, bias, part):
    X = problem.harmful.features[:rows]
    task = ImmunizationProblem.from_data(X, X[:, 0], X).pretrain
    b = (
        torch.linspace(-0.2, 0.3, 7, dtype=torch.float64)[None]
        if bias == "with"
        else torch.zeros(1, 7).double()
    )
    switches = replace(CORRECTED_FULL, preconditioner_side="output", bias=bias, covariance="minibatch")
    method = SwitchedAlgorithm1(switches, image_side=None, ridges=(0.1, 0.1))
    if bias == "with":
        task = with_constant_input(ImmunizationProblem(task, task)).pretrain
        found = method.direction(task, torch.cat([theta, b]), part)
    else:
        found = method.direction(task, theta, part)

    # As autograd has it, on the weight (out, in) of a linear layer.
    W, c = theta.mT.clone().requires_grad_(), b.clone().requires_grad_()
    features = X @ W.mT + c
    S = features.mT @ features
    rank = min(rows, 7)
    (r_well(S) if part == "well" else r_ill(S, rank=rank)).backward()
    expected = torch.linalg.solve(X.mT @ X + 0.1 * torch.eye(7).double(), W.grad).mT
    torch.testing.assert_close(found[:7], expected, rtol=1e-8, atol=1e-8 * float(expected.abs().max()))
    if bias == "with":
        torch.testing.assert_close(found[7:], c.grad, rtol=1e-8, atol=1e-8 * float(c.grad.abs().max()))


def test_at_the_floor_r_ill_only_scales_up(problem, theta):
    X = problem.harmful.features[:4]
    task = ImmunizationProblem.from_data(X, X[:, 0], X).pretrain
    switches = replace(CORRECTED_FULL, kappa_floor="absolute", covariance="minibatch")
    found = SwitchedAlgorithm1(switches, image_side=None).direction(task, theta, "ill")
    S = theta.mT @ X.mT @ X @ theta
    rho = S.square().sum() / (2 * 7) - 1e-12 / 2
    torch.testing.assert_close(found, -2 * theta @ S / (7 * rho**2))


def test_image_side_replaces_p_and_k(problem, theta):
    switches = replace(CORRECTED_FULL, regularizer_dimension="image_side", kappa_floor="absolute")
    with_side, without = (SwitchedAlgorithm1(switches, image_side=side) for side in (3, None))
    S = theta.mT @ problem.pretrain.covariance @ theta
    difference = with_side.direction(problem.pretrain, theta, "well") - without.direction(
        problem.pretrain, theta, "well"
    )
    torch.testing.assert_close(difference, 2 * theta @ S * (1 / 7 - 1 / 3))


def test_start_is_that_of_the_registered_method_with_the_bias_after_it(problem):
    plain = SwitchedAlgorithm1(CORRECTED_FULL, image_side=None)
    biased = SwitchedAlgorithm1(replace(CORRECTED_FULL, bias="with"), image_side=None)
    first = plain.initial(problem, torch.Generator().manual_seed(1))
    second = biased.initial(with_constant_input(problem), torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        first["theta"], second["theta"][:7], rtol=4e-16, atol=0
    )  # up to the last digit
    assert second["theta"].shape == (8, 7)
    assert float(second["theta"][-1].abs().max()) <= 7**-0.5
    assert float(second["omega"].abs().max()) > 7**-0.5  # standard normal


def test_gradient_of_the_loss_with_a_bias(problem):
    biased = with_constant_input(problem)
    method = SwitchedAlgorithm1(ProtocolSwitches(), image_side=None)
    parameters = method.initial(biased, torch.Generator().manual_seed(1))
    found = method.gradients(biased, parameters, None, None)
    leaves = {name: value.clone().requires_grad_() for name, value in parameters.items()}
    X = biased.pretrain.features
    prediction = X @ leaves["theta"] @ leaves["omega"]
    (prediction - biased.pretrain.targets).square().mean().backward()
    torch.testing.assert_close(found.parts["supervised"], leaves["theta"].grad)
    torch.testing.assert_close(found.others["omega"], leaves["omega"].grad)


def places(batch, task):
    """Return which rows of a task a batch has."""
    return [int((task.features == row).all(dim=1).nonzero()) for row in batch.features]


def test_an_epoch_reads_the_longer_task_in_full_batches_and_repeats_the_shorter(problem):
    paired, generator = PairedBatches(problem.pretrain, problem.harmful), torch.Generator().manual_seed(0)
    batches = [paired.sample(8, generator) for _ in range(4)]
    assert [len(batch.pretrain.features) for batch in batches] == [8] * 4  # of 20 rows, 4 are left out
    for epoch in (batches[:2], batches[2:]):
        seen = [place for batch in epoch for place in places(batch.pretrain, problem.pretrain)]
        assert len(set(seen)) == 16
        harmful = [batch.harmful.features for batch in epoch]  # 12 rows: one full batch
        assert torch.equal(harmful[0], harmful[1])
    assert not torch.equal(batches[0].pretrain.features, batches[2].pretrain.features)
    X, task = batches[1].pretrain.features, batches[1].pretrain
    torch.testing.assert_close(task.covariance, X.mT @ X)
    torch.testing.assert_close(task.targets[:, 0], X[:, 0] - X[:, 1])  # rows and targets stay together


def test_rows_of_equally_long_tasks_stay_together(problem):
    X = problem.pretrain.features
    both = ImmunizationProblem.from_data(X, X[:, 0], X.flip(1))
    paired, generator = PairedBatches(both.pretrain, both.harmful), torch.Generator().manual_seed(0)
    for _ in range(5):
        batch = paired.sample(8, generator)
        assert places(batch.pretrain, both.pretrain) == places(batch.harmful, both.harmful)
    # Fewer rows than a batch are one batch.
    batch = PairedBatches(problem.pretrain, problem.harmful).sample(64, torch.Generator().manual_seed(0))
    assert (len(batch.pretrain.features), len(batch.harmful.features)) == (20, 12)


def test_updates_stay_those_of_the_releases_loaders():
    data = AuditData.parse("embedded")
    for name in ("rows", "covariance"):
        assert data.settings(ProtocolSwitches().turn(name), data.load()).steps == 10 * 3


def test_first_rows_are_standardised_again_only_where_the_switch_says_so():
    pair = load_diabetes_tasks(features="published")
    kept, cut = (first_rows(pair, standardise_again=again) for again in (True, False))
    assert cut.X_P.shape == (200, 9)
    assert cut.X_H.shape == (200, 9)
    assert np.array_equal(cut.X_P, pair.X_P[:200])
    varying = kept.X_H.std(axis=0) > 0
    np.testing.assert_allclose(kept.X_H.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(kept.X_H.std(axis=0)[varying], 1)
    assert np.abs(cut.X_H.mean(axis=0)).max() > 0.01


def test_spectra_are_those_of_features_with_their_bias():
    data, loaded, cell = planned(AuditData.parse("embedded"), ProtocolSwitches(), steps=3)
    tasks, result = train_cell(data, loaded, cell)
    spectra = cell_spectra(*compute_cell(data, loaded, cell))
    X = tasks.inputs.harmful.features
    features = X @ result.theta[:-1] + result.theta[-1]
    for found, matrix in ((spectra.harmful_after, features), (spectra.harmful_before, X)):
        torch.testing.assert_close(found, (torch.linalg.svdvals(matrix) ** 2)[: len(found)])


def test_labels_of_a_digit_pair():
    data = AuditData.parse("digits:4-7")
    reference = load_small_digits()
    published = switched_tasks(data, reference, replace(CORRECTED_FULL, labels="published"))
    assert published.image_side == 8
    assert not published.problem.pretrain.targets.any()
    assert published.problem.pretrain.supervised_rows.shape == published.problem.pretrain.features.shape
    balanced = switched_tasks(data, reference, CORRECTED_FULL)
    assert float(balanced.problem.pretrain.targets.mean()) == pytest.approx(0.5)


def test_the_corrected_end_is_the_registered_method():
    result = trained(AuditData.parse("embedded"), CORRECTED_FULL, 1)
    problem = ImmunizationProblem.from_pair(load_diabetes_tasks(features="published"))
    registered = NAMED_SETTINGS["diabetes"]
    assert result.steps == registered.steps == 2000
    assert torch.equal(result.theta, immunize(problem, "ours", seed=1, **asdict(registered)).theta)
    study = DigitPairs("digits")
    result = trained(AuditData.parse("digits:4-7"), CORRECTED_FULL)
    assert result.steps == DIGIT_SETTINGS["digits-8x8"]["ours"].steps
    assert torch.equal(result.theta, study.immunize(study.load(), study.cell("ours", 0, (4, 7))).theta)


def test_the_corrected_end_is_the_registered_method_on_house_prices(real_data):
    data = AuditData.parse("house-prices")
    assert data.settings(CORRECTED_FULL, data.load()) == HOUSE_SETTINGS["ours"].with_overrides(record_every=0)
    # The full length takes half a minute: the same settings over fewer steps tell any difference.
    result = trained(data, CORRECTED_FULL, 2, steps=60)
    problem = ImmunizationProblem.from_pair(load_house_prices("local", features="published"))
    settings = HOUSE_SETTINGS["ours"].with_overrides(steps=60)
    assert torch.equal(result.theta, immunize(problem, "ours", seed=2, **asdict(settings)).theta)


def test_the_released_end_behaves_as_reported_on_house_prices(real_data):
    study, data = ReproductionAudit(), AuditData.parse("house-prices")

    def rir(epochs, seed):
        found = compute_cell(*planned(data, study.released(epochs), seed))
        return immunization_from_spectra(cell_spectra(*found), convention="ridge", gauge="as_trained").rir

    # Of the release: about 1.6 to 2.2 at 10 epochs and 80 to 115 at 100, here a seed may lie outside.
    assert 1.6 < np.mean([rir(10, seed) for seed in range(5)]) < 2.2
    assert all(80 < rir(100, seed) < 115 for seed in (0, 1))


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return DIGITS.run(out=tmp_path_factory.mktemp("audit"), jobs=1)


def hand_made(rirs):
    """Results with given RIRs: {(path, index): one a seed}, κ's of 1 but for the harmful task."""
    rows = []
    for (path, index), values in rirs.items():
        for seed, value in enumerate(values):
            stage = {"dataset": "t", "path": path, "start_epochs": 10, "index": index, "seed": seed}
            facts = {"switch": "released" if index == 0 else "rows", "convention": "ridge", "rir": value}
            rows.append(stage | facts | {"success": value > 3, "updates": 40})
    return pd.DataFrame(rows)


def test_paths_go_from_one_protocol_to_the_other():
    for text in ("house-prices", "embedded", "mnist:4-7", "digits:4-7"):
        config = ReproductionAudit(text, epochs=(10,))
        stages = list(config.stages())
        path = [stage for stage in stages if stage.path == "cumulative"]
        assert path[0].switches.turned() == tuple(
            name for name in SWITCHES if name not in config.tasks.switches
        )
        assert path[-1].switches == CORRECTED_FULL
        assert [stage.switch for stage in path[1:]] == list(config.tasks.switches)
        for before, after in pairwise(path):
            assert after.switches == before.switches.turn(after.switch)
        for stage in stages:
            if stage.path == "alone":
                assert stage.switches == path[0].switches.turn(stage.switch)
        ridges = [stage.ridge for stage in stages if stage.path == "ridge" and stage.start == 10]
        assert ridges == list(OTHER_RIDGES)


def test_equal_settings_are_one_cell(digits):
    stages = list(DIGITS.stages())
    plans = [cell.key for cell in DIGITS.planned(digits.data)]
    assert len(plans) == 2 * len(stages)
    assert len(set(plans)) < len(plans)  # the first switch alone is the second row of the waterfall
    assert digits.report.computed == len(set(plans))
    assert len(digits.results) == 2 * len(plans)  # two conventions


def test_tables_and_files(digits, tmp_path):
    assert list(digits.results.columns) == RESULT_COLUMNS
    assert digits.results.notna().all().all()
    assert digits.save(tmp_path) == ["results.csv", "waterfall.csv", "landing.csv"]
    assert len(pd.read_csv(tmp_path / "waterfall.csv")) == len(digits.waterfall)
    assert digits.landing["epochs"].tolist() == [1, 2]
    assert digits.landing["reported_min"].isna().all()  # nothing is reported for these data
    assert "digit 4 (D_P) and 7 (D_H)" in DIGITS.title(digits.data)
    assert digits.failures.empty


def test_the_last_row_is_the_corrected_protocol_at_its_own_length(digits):
    end = digits.waterfall[(digits.waterfall["path"] == "cumulative")].sort_values("index").iloc[-1]
    assert end["switch"] == "epochs"
    assert end["updates"] == DIGITS.tasks.registered.steps
    others = digits.results[digits.results["switch"] != "epochs"]
    assert set(others.loc[others["path"] != "released", "updates"]) == {2}  # 178 rows in full batches of 64


def test_a_finished_study_is_not_computed_again(tmp_path):
    study = ReproductionAudit("digits:9-0", seeds=1, epochs=(1,))
    first, again = (study.run(out=tmp_path, jobs=1) for _ in range(2))
    assert again.report.computed == 0
    assert again.report.reused == first.report.computed > 0
    pd.testing.assert_frame_equal(first.results, again.results)


def test_changes_are_paired_by_seed_and_add_up():
    results = hand_made(
        {
            ("cumulative", 0): [1.0, 4.0],
            ("cumulative", 1): [10.0, 40.0],
            ("cumulative", 2): [10.0, 10.0],
            ("alone", 1): [100.0, 4.0],
        }
    )
    table = waterfall_table(results).set_index(["path", "index"])
    assert table.loc[("cumulative", 1), "change"] == pytest.approx(1)
    assert table.loc[("cumulative", 1), "change_std"] == pytest.approx(0)  # though RIR itself varies
    assert table.loc[("cumulative", 1), "rir"] == pytest.approx(20)
    assert table.loc[("cumulative", 2), "factor"] == pytest.approx(0.5)
    assert table.loc[("alone", 1), "change"] == pytest.approx(1)  # against the release: 100 and 1
    assert np.isnan(table.loc[("cumulative", 0), "change"])
    path = table.loc["cumulative"]
    assert path["change"].sum() == pytest.approx(path["log10_rir"].iloc[-1] - path["log10_rir"].iloc[0])
    assert table["immunized"].tolist() == [1, 2, 2, 2]


def test_results_are_measured_from_spectra():
    stage = next(ReproductionAudit("embedded").stages())
    arrays = {
        "pretrain_before": np.array([4.0, 1.0]),
        "pretrain_after": np.array([2.0, 1.0]),
        "harmful_before": np.array([3.0, 1.0]),
        "harmful_after": np.array([60.0, 2.0]),
    }
    row = {"dimension": 3, "rows_pretrain": 5, "rows_harmful": 6, "updates": 1, "seconds": 0.1}
    cell = CellResult(row | {"stop_reason": "steps"}, arrays)
    table = results_table("t", [(stage, 7, cell)]).set_index("convention")
    assert table.loc["compact", "rir"] == pytest.approx((30 / 3) / (2 / 4))
    # Rank 2 of 3: at the floor only the largest values count.
    assert table.loc["ridge", "rir"] == pytest.approx((60 / 3) / (2 / 4), rel=1e-5)
    assert table.loc["compact", "seed"] == 7


def test_landing_holds_the_releases_end_against_the_report():
    results = hand_made({("cumulative", 0): [1.0, 2.0], ("cumulative", 1): [50.0, 60.0]})
    (row,) = landing_table(waterfall_table(results), results, {10: (1.8, 2.2)}).to_dict("records")
    assert (row["epochs"], row["inside"], row["seeds"]) == (10, 1, 2)
    assert row["miss"] == pytest.approx(1.5 / 1.8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": 0}, "seeds must be an integer of at least 1, got 0"),
        ({"epochs": "10,ten"}, "epochs='10,ten' is no list"),
        ({"epochs": "10,0"}, "epochs must be an integer of at least 1, got 0"),
        ({"ends": "-1"}, "ends must be an integer of at least 1, got -1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_parameters(change, words):
    parameters = {"data": "embedded", "source": "auto", "seeds": 1, "epochs": "", "ends": ""}
    with pytest.raises(InvalidInputError, match=words):
        ReproductionAudit.from_parameters(**parameters | change)


def test_ends_of_house_prices_unless_told_otherwise():
    parameters = {"data": "house-prices", "source": "auto", "seeds": 1, "epochs": "5"}
    assert ReproductionAudit.from_parameters(**parameters, ends="").ends == (1000,)
    assert ReproductionAudit.from_parameters(**parameters, ends="0").ends == ()
    assert ReproductionAudit.from_parameters(**parameters, ends="").epochs == (5,)
