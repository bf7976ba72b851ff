"""The release's loop rebuilt with switches: its gradients, its loaders, and both ends of the path."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from condnum import ImmunizationProblem, immunize, r_ill, r_well
from condnum.data import load_diabetes_tasks, load_house_prices
from condnum.data.digits import load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.methods import NAMED_SETTINGS
from condnum.methods.algorithm1 import ill_direction, well_direction
from condnum.studies.cells import Cell
from condnum.studies.digit_pairs import SETTINGS as DIGIT_SETTINGS
from condnum.studies.digit_pairs import DigitPairs
from condnum.studies.house_prices import SETTINGS as HOUSE_SETTINGS
from condnum.studies.release import TEXTS, ReproductionAudit
from condnum.studies.release_cells import (
    CORRECTED,
    SWITCHES,
    AuditData,
    PairedBatches,
    ProtocolSwitches,
    SwitchedAlgorithm1,
    feature_spectra,
    first_rows,
    switched_tasks,
    train_cell,
    with_constant_input,
)
from condnum.theory.immunization import immunization_from_spectra

CORRECTED_FULL = ProtocolSwitches.preset("corrected")


@pytest.fixture
def problem():
    generator = torch.Generator().manual_seed(3)
    P, H = (torch.randn(rows, 7, generator=generator, dtype=torch.float64) for rows in (20, 12))
    return ImmunizationProblem.from_data(P, P[:, 0] - P[:, 1], H, H[:, 2])


@pytest.fixture
def theta():
    return torch.randn(7, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def trained(data, switches, seed=0, **overrides):
    """Tasks and result of a setting."""
    loaded = data.load()
    settings = data.settings(switches, loaded).with_overrides(**overrides)
    at = {"switches": switches.as_payload(), "ridges": data.ridges, "seed": seed}
    return train_cell(data, loaded, Cell(at, asdict(settings)))


def test_the_two_protocols_are_the_two_ends():
    released, corrected = (ProtocolSwitches.preset(name) for name in ("released", "corrected"))
    assert released == ProtocolSwitches()
    assert released.turned() == ()
    assert corrected.turned() == SWITCHES == tuple(CORRECTED) == tuple(TEXTS)
    turned = released
    for name in SWITCHES:
        assert getattr(released, name) != CORRECTED[name]
        assert released.turn(name).turned() == (name,)
        turned = turned.turn(name)
    assert turned == corrected


def test_algorithm_1_is_what_the_five_switches_of_its_gradient_say():
    switches = ProtocolSwitches()
    for name in ("bias", "preconditioner_side", "regularizer_dimension", "kappa_floor"):
        switches = switches.turn(name)
        assert not switches.is_algorithm_1
    assert switches.turn("covariance").is_algorithm_1


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ProtocolSwitches(covariance="some"), UnknownNameError, "minibatch, full"),
        (lambda: ProtocolSwitches(epochs=0), InvalidInputError, "got 0"),
        (lambda: ProtocolSwitches(epochs=True), InvalidInputError, "got True"),
        (lambda: ProtocolSwitches().turn("bais"), UnknownNameError, "did you mean 'bias'"),
        (lambda: ProtocolSwitches.preset("release"), UnknownNameError, "did you mean 'released'"),
        (lambda: AuditData.parse("svhn"), UnknownNameError, "svhn"),
        (lambda: AuditData.parse("mnist"), InvalidInputError, "come with a pair"),
        (lambda: AuditData.parse("house-prices:4-7"), InvalidInputError, "tables without one"),
        (lambda: AuditData.parse("digits:4-4"), InvalidInputError, "two different digits"),
        (lambda: AuditData.parse("embedded", "/data"), InvalidInputError, "has no source '/data'"),
    ],
    ids=[
        "position",
        "epochs-0",
        "epochs-bool",
        "switch",
        "protocol",
        "data",
        "no-pair",
        "pair",
        "equal",
        "source",
    ],
)
def test_bad_choices(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_turned_switches_give_the_directions_of_the_library(problem, theta):
    # Forced through the general path, which `gradients` leaves to `Ours` when all are turned.
    method = SwitchedAlgorithm1(CORRECTED_FULL, image_side=None)
    torch.testing.assert_close(
        method.direction(problem.pretrain, theta, "well"), well_direction(problem.pretrain, theta)
    )
    torch.testing.assert_close(
        method.direction(problem.harmful, theta, "ill"), ill_direction(problem.harmful, theta)
    )


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
    torch.testing.assert_close(found.theta_parts["supervised"], leaves["theta"].grad)
    torch.testing.assert_close(found.others["omega"], leaves["omega"].grad)


def places(batch, task):
    """Return which rows of a task a batch has."""
    return [int((task.features == row).all(dim=1).nonzero()) for row in batch.features]


def test_an_epoch_reads_the_longer_task_in_full_batches_and_repeats_the_shorter(problem):
    paired, generator = PairedBatches.of(problem), torch.Generator().manual_seed(0)
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
    paired, generator = PairedBatches.of(both), torch.Generator().manual_seed(0)
    for _ in range(5):
        batch = paired.sample(8, generator)
        assert places(batch.pretrain, both.pretrain) == places(batch.harmful, both.harmful)


def test_fewer_rows_than_a_batch_are_one_batch(problem):
    batch = PairedBatches.of(problem).sample(64, torch.Generator().manual_seed(0))
    assert (len(batch.pretrain.features), len(batch.harmful.features)) == (20, 12)


def test_updates_stay_those_of_the_releases_loaders():
    data = AuditData.parse("embedded")
    loaded = data.load()
    for name in ("rows", "covariance"):
        assert data.settings(ProtocolSwitches().turn(name), loaded).steps == 10 * 3


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
    data = AuditData.parse("embedded")
    tasks, result = trained(data, ProtocolSwitches(), steps=3)
    spectra = feature_spectra(tasks, result.theta)
    W, b = result.theta[:-1], result.theta[-1]
    features = tasks.inputs.harmful.features @ W + b
    sigma = torch.linalg.svdvals(features) ** 2
    torch.testing.assert_close(spectra.harmful_after, sigma[: len(spectra.harmful_after)])
    raw = torch.linalg.svdvals(tasks.inputs.harmful.features) ** 2
    torch.testing.assert_close(spectra.harmful_before, raw[: len(spectra.harmful_before)])


def test_labels_of_a_digit_pair():
    data = AuditData.parse("digits:4-7")
    reference = load_small_digits()
    published = switched_tasks(data, reference, replace(CORRECTED_FULL, labels="published"))
    assert published.image_side == 8
    assert not published.problem.pretrain.targets.any()
    assert published.problem.pretrain.supervised_rows.shape == published.problem.pretrain.features.shape
    balanced = switched_tasks(data, reference, CORRECTED_FULL)
    assert float(balanced.problem.pretrain.targets.mean()) == pytest.approx(0.5)


def test_the_corrected_end_is_the_registered_method_on_the_embedded_table():
    data = AuditData.parse("embedded")
    result = trained(data, CORRECTED_FULL, seed=1)[1]
    problem = ImmunizationProblem.from_pair(load_diabetes_tasks(features="published"))
    registered = NAMED_SETTINGS["diabetes"]
    expected = immunize(problem, "ours", seed=1, **asdict(registered))
    assert result.steps == registered.steps == 2000
    assert torch.equal(result.theta, expected.theta)


def test_the_corrected_end_is_the_registered_method_on_a_pair_of_digits():
    study = DigitPairs("digits")
    expected = study.immunize(study.load(), study.cell("ours", 0, (4, 7)))
    result = trained(AuditData.parse("digits:4-7"), CORRECTED_FULL)[1]
    assert result.steps == DIGIT_SETTINGS["digits-8x8"]["ours"].steps
    assert torch.equal(result.theta, expected.theta)


def test_the_corrected_end_is_the_registered_method_on_house_prices(real_data):
    data = AuditData.parse("house-prices")
    assert data.settings(CORRECTED_FULL, data.load()) == HOUSE_SETTINGS["ours"].with_overrides(record_every=0)
    # The full length takes half a minute: the same settings over fewer steps tell any difference.
    result = trained(data, CORRECTED_FULL, seed=2, steps=60)[1]
    problem = ImmunizationProblem.from_pair(load_house_prices("local", features="published"))
    settings = HOUSE_SETTINGS["ours"].with_overrides(steps=60)
    assert torch.equal(result.theta, immunize(problem, "ours", seed=2, **asdict(settings)).theta)


def rir(data, switches, seed):
    tasks, result = trained(data, switches, seed)
    spectra = feature_spectra(tasks, result.theta)
    return immunization_from_spectra(spectra, convention="ridge", gauge="as_trained").rir


def test_the_released_end_behaves_as_reported_on_house_prices(real_data):
    data = AuditData.parse("house-prices")
    at_10 = [rir(data, ReproductionAudit().released(10), seed) for seed in range(5)]
    # Of the release: about 1.6 to 2.2 at 10 epochs and 80 to 115 at 100, here a seed may lie outside.
    assert 1.6 < np.mean(at_10) < 2.2
    at_100 = [rir(data, ReproductionAudit().released(100), seed) for seed in (0, 1)]
    assert all(80 < value < 115 for value in at_100)
