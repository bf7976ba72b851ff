"""Batched descents against the same problems one by one."""

import numpy as np
import pytest
import torch

from condnum.errors import InvalidInputError
from condnum.methods import NAMED_SETTINGS, descends_in_batches, get_method, immunize, immunize_batch
from condnum.methods.algorithm1 import RIllOnly
from condnum.methods.method import SMALL, Gradients
from condnum.methods.problem import ImmunizationProblem, LinearTask, batch_size, problem_bytes
from condnum.studies.digit_cells import digit_problem
from condnum.studies.digit_pairs import DigitPairs
from condnum.theory.spectra import covariance_factor

DIMENSION = 140  # above SMALL, where one problem alone takes the factor form


def task(rank, decay, seed, *, rows=0, loss="mse"):
    """A covariance with eigenvalues decay^0 … decay^(rank−1), and a loss on other rows."""
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, generator=generator, dtype=torch.float64))
    values = torch.zeros(DIMENSION, dtype=torch.float64)
    values[:rank] = decay ** torch.arange(rank)
    K = (Q * values) @ Q.mT
    K = (K + K.mT) / 2
    if not rows:
        return LinearTask(K, known_factor=covariance_factor(K, rtol=1e-13))
    X = torch.randn(rows, DIMENSION, generator=generator, dtype=torch.float64)
    y = (X[:, :1] > 0).double()
    return LinearTask(K, None, y, loss, X, covariance_factor(K, rtol=1e-13))


def problems(*ranks, loss=None, decay=0.95):
    """Problems with the given (rank of P, rank of H); their losses differ in rows too."""
    assert DIMENSION > SMALL
    return [
        ImmunizationProblem(
            task(p, decay, 2 * i, rows=0 if loss is None else 20 + i, loss=loss),
            task(h, decay, 2 * i + 1, rows=0 if loss is None else 25 + i, loss=loss),
        )
        for i, (p, h) in enumerate(ranks)
    ]


@pytest.fixture(scope="module")
def digits():
    """Pairs of 8×8 digits with different ranks and different numbers of rows, two seeds each."""
    config = DigitPairs(epochs=30)
    chosen = [
        digit_problem(config.load(), p, h, loss_rows=1000, labels="one_vs_rest")
        for p, h in ((4, 7), (0, 1))
        for _ in range(2)
    ]
    assert len({p.pretrain.rank for p in chosen} | {p.harmful.rank for p in chosen}) > 2
    return config, chosen, [0, 1, 0, 1]


def assert_same(batch, alone, rtol=1e-8):
    """κ after the last step within 1e-8, and all else that a result says."""
    assert len(batch) == len(alone)
    for ours, theirs in zip(batch, alone, strict=True):
        assert (ours.seed, ours.steps, ours.stop_reason) == (theirs.seed, theirs.steps, theirs.stop_reason)
        assert list(ours.history.columns) == list(theirs.history.columns)
        np.testing.assert_array_equal(ours.history["step"], theirs.history["step"])
        assert ours.part_weights == pytest.approx(theirs.part_weights, rel=1e-9)
        for name in theirs.history.columns:
            np.testing.assert_allclose(ours.history[name], theirs.history[name], rtol=rtol, err_msg=name)


@pytest.mark.parametrize("method", ["ours", "r_ill_only", "opt_kappa", "imma"])
def test_digits_as_one_by_one(digits, method):
    config, chosen, seeds = digits
    settings = config.settings(method)
    batch = immunize_batch(chosen, method, seeds=seeds, settings=settings)
    assert_same(
        batch, [immunize(p, method, seed=s, settings=settings) for p, s in zip(chosen, seeds, strict=True)]
    )
    split = [
        *immunize_batch(chosen[:3], method, seeds=seeds[:3], settings=settings),
        *immunize_batch(chosen[3:], method, seeds=seeds[3:], settings=settings),
    ]
    assert_same(split, batch)


@pytest.mark.parametrize(
    ("method", "ranks", "loss", "options"),
    [
        ("ours", ((120, 110), (100, 130), (140, 140)), None, {}),
        ("ours", ((120, 110), (100, 130)), "bce", {"loss_weight": 10.0}),
        ("ours", ((120, 110), (100, 130)), "mse", {"optimizer": "gd", "weights": "fixed"}),
        ("r_ill_only", ((120, 110), (100, 130)), None, {}),
        ("opt_kappa", ((120, 110), (100, 130)), None, {"convention": "ridge"}),
        ("opt_kappa", ((120, 110), (100, 130)), None, {"convention": "ridge", "objective": "log"}),
        # Ranks far below D and small steps: at κ_H = 1e7 the vector of σ_k, and with it all that follows, is
        # only known to 1e-7, whoever computes it.
        ("opt_kappa", ((30, 25), (20, 40)), None, {"convention": "compact", "learning_rate": 1e-4}),
        ("imma", ((120, 110), (100, 130)), "bce", {"inner_steps": 2}),
        ("imma", ((120, 110), (100, 130)), "mse", {}),
    ],
)
def test_large_extractors_as_one_by_one(method, ranks, loss, options):
    chosen = problems(*ranks, loss=loss)
    steps = {"steps": 30, "learning_rate": 1e-3, "record_every": 15}
    if options.get("weights") == "fixed":
        steps |= {"learning_rate": 1e-2, "lambda_pretrain": 1.0, "lambda_harmful": 1.0}
    settings = get_method(method).defaults.with_overrides(**(steps | options))
    seeds = range(len(chosen))
    batch = immunize_batch(chosen, method, seeds=seeds, settings=settings)
    assert_same(
        batch, [immunize(p, method, seed=s, settings=settings) for p, s in zip(chosen, seeds, strict=True)]
    )


def test_a_problem_that_diverges_keeps_its_last_finite_theta_and_touches_no_other():
    sound = problems((120, 110), (100, 130))
    tall = ImmunizationProblem(  # F is finite, H = FᵀF is not
        *(
            LinearTask(task.covariance, known_factor=task.factor * 1e160)
            for task in (sound[0].pretrain, sound[0].harmful)
        )
    )
    settings = NAMED_SETTINGS["fixed"].with_overrides(steps=6, learning_rate=1e-3, record_every=2)
    mixed = immunize_batch([sound[0], tall, sound[1]], seeds=[0, 5, 1], settings=settings)
    alone = immunize(tall, seed=5, settings=settings)
    assert mixed[1].stop_reason == alone.stop_reason == "diverged"
    assert mixed[1].steps == alone.steps
    assert bool(torch.isfinite(mixed[1].theta).all())
    torch.testing.assert_close(mixed[1].theta, alone.theta, rtol=1e-9, atol=1e-12)
    assert len(mixed[1].history) == len(alone.history)
    assert_same([mixed[0], mixed[2]], immunize_batch(sound, seeds=[0, 1], settings=settings), rtol=1e-12)


def test_steps_that_overflow_are_taken_back():
    """Plain gradient descent with a rate at which θ overflows, beside one that cannot move."""
    chosen = problems((120, 110))
    still = ImmunizationProblem(
        LinearTask(torch.eye(DIMENSION).double()), LinearTask(torch.eye(DIMENSION).double() * 1e-9)
    )
    options = {"steps": 60, "learning_rate": 1e3, "optimizer": "gd", "record_every": 0}
    options |= {"weights": "fixed", "lambda_pretrain": 1e-9, "lambda_harmful": 1e9}
    settings = NAMED_SETTINGS["fixed"].with_overrides(**options)
    batch = immunize_batch([chosen[0], still], seeds=[0, 0], settings=settings)
    for result, problem in zip(batch, [chosen[0], still], strict=True):
        alone = immunize(problem, seed=0, settings=settings)
        assert (result.stop_reason, result.steps) == (alone.stop_reason, alone.steps)
        assert bool(torch.isfinite(result.theta).all())
        assert len(result.history) == 0
    assert "diverged" in {result.stop_reason for result in batch}


def test_tolerance_stops_each_problem_by_itself():
    chosen = problems((120, 110), (30, 20))
    settings = NAMED_SETTINGS["fixed"].with_overrides(steps=25, learning_rate=0.01, tolerance=0.6)
    batch = immunize_batch(chosen, seeds=[0, 1], settings=settings)
    alone = [immunize(p, seed=s, settings=settings) for p, s in zip(chosen, [0, 1], strict=True)]
    assert "tolerance" in {result.stop_reason for result in alone}
    assert_same(batch, alone)
    assert [r.converged for r in batch] == [r.converged for r in alone]


class TestMethodsWithoutABatchedForm:
    def test_a_users_method_runs_one_by_one(self, registered):
        class Mine(RIllOnly):
            name = "mine"
            batched_gradients = None

            def gradients(self, problem, parameters, settings, memory):
                return Gradients({"ill": parameters["theta"].sign()}, {})

        registered(Mine())
        assert not descends_in_batches("mine")
        chosen = problems((120, 110), (100, 130))
        settings = Mine.defaults.with_overrides(steps=2)
        results = immunize_batch(chosen, "mine", seeds=[0, 1], settings=settings)
        torch.testing.assert_close(
            results[1].theta, immunize(chosen[1], "mine", seed=1, settings=settings).theta
        )

    @pytest.mark.parametrize("method", ["identity", "initial", "optimal"])
    def test_closed_forms(self, digits, method):
        _, chosen, seeds = digits
        results = immunize_batch(chosen[:2], method, seeds=seeds[:2])
        assert [r.stop_reason for r in results] == ["closed_form"] * 2
        torch.testing.assert_close(results[1].theta, immunize(chosen[1], method, seed=1).theta)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: immunize_batch(p, seeds=[0]), "one seed a problem, got 2 and 1"),
        (lambda p: immunize_batch([], seeds=[]), "one seed a problem"),
        (lambda p: immunize_batch(p, "imma", seeds=[0, 1]), "needs the targets of both tasks"),
        (
            lambda p: immunize_batch(p, "imma", seeds=[0, 1], settings=NAMED_SETTINGS["fixed"]),
            "takes ImmaSettings, got DescentSettings",
        ),
        (
            lambda p: immunize_batch(
                [p[0], ImmunizationProblem.from_covariances([[1.0]], [[1.0]])],
                seeds=[0, 1],
                settings=NAMED_SETTINGS["fixed"],
            ),
            "parameters of the same shapes",
        ),
        (
            lambda p: immunize_batch(
                [p[0], problems((120, 110), loss="mse")[0]],
                seeds=[0, 1],
                settings=NAMED_SETTINGS["fixed"],
            ),
            "parameters of the same shapes",
        ),
    ],
    ids=["seeds", "empty", "targets", "settings", "dimension", "losses"],
)
def test_what_does_not_fit_together_is_refused(make, text):
    with pytest.raises(InvalidInputError, match=text):
        make(problems((120, 110), (100, 130)))


def test_the_batch_size_fills_the_memory_and_is_never_zero():
    (problem,) = problems((120, 110))
    cpu, each = torch.device("cpu"), problem_bytes(problem)
    assert each >= 8 * (10 * DIMENSION**2 + 2 * (120 + 110) * DIMENSION)
    assert batch_size(problem, cpu, 10 * each) == 10
    assert batch_size(problem, cpu, each // 2) == 1
    assert batch_size(problem, cpu) >= 1


def test_the_batch_size_on_a_gpu_is_asked_of_it(monkeypatch):
    (problem,) = problems((120, 110))
    each = problem_bytes(problem)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 * each, 100 * each))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3 * each)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: each)
    assert batch_size(problem, torch.device("cuda")) == 8  # 0.8 × (8 + 3 − 1)
