"""A task against 60 digits: ranks, spectra, κ and steps; blocks, classes, covariances, what is refused."""

import mpmath
import numpy as np
import pandas as pd
import pytest
import torch
from covariances import STRUCTURES, orthogonal, structured_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import condnum
from condnum import ImmunizationProblem, Immunizer, Task, condition_number, immunize, probe_steps
from condnum.errors import InvalidInputError, RankError
from condnum.theory.kappa import descent_steps, relative_immunization_ratio


def stream(blocks, **options):
    """The task of blocks of rows with targets."""
    (X, y), *rest = blocks
    task = Task.of(X, y, **options)
    for X, y in rest:
        task = task.extended(X, y)
    return task


EPS = 2.0**-52
DRAWS = settings(max_examples=40)
SEEDS, KINDS = st.integers(0, 10**6), st.sampled_from(STRUCTURES)
RNG = np.random.default_rng(0)


def rows_of(kappa, N, D, seed=0):
    """Rows with singular values from 1 to 1/κ in random directions."""
    rng, n = np.random.default_rng(seed), min(N, D)
    U, V = (orthogonal(rng, size)[:, :n] for size in (N, D))
    return (U * np.geomspace(1, 1 / kappa, n)) @ V.T


def exact(X, *, centered=False, theta=None):
    """All min(N, D) singular values of the stored rows, or of Xθ, descending, with 60 digits."""
    with mpmath.workdps(60):
        M = mpmath.matrix(np.asarray(X, dtype=float).tolist())
        if centered:
            for column in range(M.cols):
                mean = mpmath.fsum(M[row, column] for row in range(M.rows)) / M.rows
                for row in range(M.rows):
                    M[row, column] -= mean
        if theta is not None:
            M = M * mpmath.matrix(theta.tolist())
        G = M * M.T if M.rows < M.cols else M.T * M  # σ² to 60 digits: σ to 30 below σ₁
        values = mpmath.eigsy(G, eigvals_only=True)
        return np.array(sorted((float(mpmath.sqrt(abs(value))) for value in values), reverse=True))


def slack(X):
    """Relative to σ₁: a shift, two QRs and an SVD, each backward stable to max(N, D)·eps."""
    return 4 * max(X.shape) * EPS


NORMAL = RNG.normal(size=(40, 6))
CASES = {  # rows, rank, rank with an intercept
    "one row": (RNG.normal(size=(1, 5)), 1, 0),
    "D ≪ N": (RNG.normal(size=(400, 3)), 3, 3),
    "N ≪ D": (RNG.normal(size=(4, 30)), 4, 3),
    "dead columns": (NORMAL * [1, 0, 1, 1, 0, 1], 4, 4),
    "constant columns": (np.c_[NORMAL, np.full(40, 0.1), np.full(40, 1e6)], 7, 6),
    "equal columns": (np.c_[NORMAL, NORMAL[:, :2]], 6, 6),
    "one-hot columns": (np.eye(5)[np.arange(2000) % 5] * 3, 5, 4),
    "graded columns": (NORMAL * np.geomspace(1, 1e-12, 6), 6, 6),
    "κ(X) = 1e6": (rows_of(1e6, 30, 6), 6, 6),
    "κ(X) = 1e12": (rows_of(1e12, 30, 6), 6, 6),
    "κ(X) = 1e12, wide": (rows_of(1e12, 6, 30), 6, 5),
    "far from zero": (NORMAL + 1e6, 6, 6),
    "float32": (rows_of(1e3, 30, 6).astype(np.float32), 6, 6),
    "float32, low rank": ((NORMAL[:, :2] @ NORMAL[:2]).astype(np.float32), 2, 2),
    "float16": (rows_of(10, 30, 6).astype(np.float16), 6, 6),
}


class TestAgainstSixtyDigits:
    @pytest.mark.parametrize("name", CASES)
    @pytest.mark.parametrize("centered", [False, True], ids=["as they are", "centered"])
    def test_rank_spectrum_and_kappa(self, name, centered):
        X, *ranks = CASES[name]
        rank = ranks[centered]
        task = Task.of(X, intercept=centered)
        if not rank:
            with pytest.raises(RankError, match="the features are all zero"):
                task.rank  # ruff: ignore[useless-expression]
            return
        true = exact(X, centered=centered)[:rank]
        size = max(1.0, np.abs(X.astype(float)).max() * len(X) ** 0.5 / true[0])  # centering cancels the mean
        relative = slack(X) * size * true[0] / true[-1]
        assert task.rank == rank
        np.testing.assert_allclose(task.sigma, true, rtol=relative, atol=slack(X) * size * true[0])
        assert task.kappa == pytest.approx((true[0] / true[-1]) ** 2, rel=3 * relative)
        K = np.asarray(X, dtype=float) - centered * np.asarray(X, dtype=float).mean(axis=0)
        atol = 3 * slack(X) * size * true[0] ** 2
        if "low rank" not in name:  # whose round-off in float32 is cut
            np.testing.assert_allclose(task.covariance, K.T @ K, rtol=0, atol=atol)

    @pytest.mark.parametrize("name", ["graded columns", "D ≪ N"])
    def test_columns_in_any_units_keep_each_value_to_itself(self, name):
        X = CASES[name][0]
        np.testing.assert_allclose(Task.of(X).sigma, exact(X), rtol=slack(X) * np.linalg.cond(NORMAL))

    def test_a_constant_column_adds_no_rank_and_is_exactly_zero_with_an_intercept(self):
        task = Task.of(np.c_[NORMAL, np.full(40, 1e6)])
        assert (task.rank, task.centered().rank) == (7, 6)
        assert not task.centered().covariance[6].any()
        assert not task.centered().vectors[6].any()
        assert Task.of(np.c_[NORMAL, np.ones(40), np.full(40, 1e6)]).rank == 7

    @pytest.mark.parametrize("columns", [2, 6, 9])
    @pytest.mark.parametrize("kappa", [10.0, 1e6, 1e12])
    def test_features_of_an_extractor(self, columns, kappa):
        X, theta = rows_of(kappa, 30, 6), np.random.default_rng(columns).normal(size=(6, columns))
        seen, true = Task.of(X).through(theta), exact(X, theta=theta)[: min(6, columns)]
        # The factor is backward stable, and θ magnifies its error by at most ‖θ‖.
        atol = slack(X) * np.linalg.norm(theta, 2) * float(seen.task.sigma[0])
        np.testing.assert_allclose(seen.sigma, true, rtol=0, atol=atol)
        assert (seen.rank, seen.dimension) == (min(6, columns), columns)

    def test_theta_may_undo_kappa(self):
        # Xθ is orthonormal, although κ(XᵀX) = 1e24 has no inverse in float64.
        X = rows_of(1e12, 30, 6)
        seen = Task.of(X).through(np.linalg.svd(X)[2].T * np.geomspace(1, 1e12, 6))
        np.testing.assert_allclose(seen.sigma, 1, atol=slack(X) * 1e12)

    @pytest.mark.parametrize("intercept", [False, True])
    @pytest.mark.parametrize("columns", [2, 6, 9])
    def test_steps_of_the_actual_target(self, columns, intercept):
        rng = np.random.default_rng(columns)
        X, y, theta = rng.normal(size=(30, 6)) + 1, rng.normal(size=30), rng.normal(size=(6, columns))
        task = Task.of(X, y, intercept=intercept)
        for seen, matrix in ((task.raw, np.eye(6)), (task.through(theta), theta)):
            with mpmath.workdps(60):
                A, b = (mpmath.matrix(of.tolist()) for of in (X, y))
                if intercept:
                    one = mpmath.ones(30, 30) / 30
                    A, b = A - one * A, b - one * b
                F = A * mpmath.matrix(matrix.tolist())
                best = (b.T * A * mpmath.lu_solve(A.T * A, A.T * b))[0]
                values, vectors = mpmath.eigsy(F.T * F)
                kept = [i for i in range(len(values)) if values[i] > mpmath.mpf(10) ** -40]
                along = vectors.T * (F.T * b)
                energy = [along[i] ** 2 / values[i] / best for i in kept]
                ratio = [values[i] / max(values) for i in kept]
                lost = 1 - mpmath.fsum(energy)

                def excess(steps, energy=energy, ratio=ratio, lost=lost):
                    parts = zip(energy, ratio, strict=True)
                    return float(lost + mpmath.fsum(e * (1 - r) ** (2 * steps) for e, r in parts))

                for epsilon in (0.5, 0.01):
                    steps = descent_steps(seen, epsilon)
                    assert seen.rank == len(kept)
                    if lost > epsilon:
                        assert steps == np.inf
                        continue
                    # The loss after each step is right to about 1e-13: whether it is below ε, to 1e-9.
                    assert excess(int(steps)) <= epsilon * (1 + 1e-9)
                    assert excess(int(steps) - 1) > epsilon * (1 - 1e-9)


class TestBlocks:
    @DRAWS
    @given(SEEDS, KINDS, st.integers(2, 9), st.lists(st.integers(1, 59), max_size=6), st.booleans())
    def test_blocks_give_what_all_rows_give(self, seed, kind, D, cuts, labels):
        rng = np.random.default_rng(seed)
        X = structured_rows(rng, kind, D)
        N, cuts = len(X), sorted({cut for cut in cuts if cut < len(X)})
        y = np.sort(rng.choice(["ant", "bee", "cat"], size=N))[::-1] if labels else rng.normal(size=(N, 2))
        whole = Task.of(X, y)
        blocks = stream(zip(np.split(X, cuts), np.split(y, cuts), strict=True))
        order = [blocks.classes.index(name) for name in whole.classes] if labels else [0, 1]
        assert (blocks.rows, blocks.dimension, blocks.outputs) == (N, D, len(order))
        # Up to seven QRs of at most N + D rows, each backward stable to (N + D)·eps in its columns' sizes.
        round_off = 7 * (N + D) * EPS * np.linalg.norm(X)
        for one, other in ((whole, blocks), (whole.centered(), blocks.centered())):
            ranks = []
            for task in (one, other):
                try:
                    ranks.append(task.rank)
                except RankError:
                    ranks.append(0)
            assert ranks[0] == ranks[1]
            if not ranks[0]:
                continue
            np.testing.assert_allclose(other.sigma, one.sigma, rtol=0, atol=round_off)
            np.testing.assert_allclose(
                other.covariance, one.covariance, rtol=0, atol=3 * round_off * np.linalg.norm(X)
            )
            bound = 3 * round_off * np.linalg.norm(one.products[1])
            np.testing.assert_allclose(other.moment[:, order], one.moment, rtol=0, atol=bound)
            np.testing.assert_allclose(other.mean, X.mean(axis=0), rtol=0, atol=round_off)
            assert other.energy == pytest.approx(one.energy, rel=1e-11)

    def test_a_new_class_in_a_later_block_is_a_new_column(self):
        first = Task.of(NORMAL[:3], ["b", "b", "b"])
        later = first.extended(NORMAL[3:5], ["a", "b"])
        assert (first.classes, later.classes, later.outputs) == (("b",), ("b", "a"), 2)
        Y = np.array([[1, 0], [1, 0], [1, 0], [0, 1], [1, 0.0]])
        np.testing.assert_allclose(later.moment, NORMAL[:5].T @ Y, atol=1e-13)
        np.testing.assert_allclose(first.moment, NORMAL[:3].T @ Y[:3, :1], atol=1e-13)  # as it was

    def test_columns_with_names_meet_by_name_in_later_blocks_too(self):
        table = pd.DataFrame(NORMAL, columns=[*"abcdef"])
        whole = Task.of(table)
        blocks = Task.of(table[:7]).extended(table[7:][[*"fbdace"]])
        np.testing.assert_allclose(blocks.covariance, whole.covariance, rtol=1e-12)
        assert blocks.columns == tuple("abcdef")
        with pytest.raises(InvalidInputError, match=r"X has no column 'a' and the first rows has no column"):
            blocks.extended(table.rename(columns={"a": "z"}))

    @pytest.mark.parametrize(
        ("X", "y", "message"),
        [
            (np.ones((2, 3)), [0, 1], "X has 3 features, but the task has 2"),
            (np.ones((2, 2)), None, "all blocks of a task must have targets, or none"),
            (np.ones((2, 2)), ["a", "b"], "y holds 'a', but earlier labels are .0, 1."),
            (np.ones((2, 2)), [0.5, 1.0], r"y must hold labels \(integers or text\), got 0.5"),
        ],
    )
    def test_blocks_that_do_not_fit_are_refused(self, X, y, message):
        with pytest.raises(InvalidInputError, match=message):
            Task.of([[1.0, 2.0], [0.0, 1.0]], [0, 1]).extended(X, y)
        with pytest.raises(InvalidInputError, match="a covariance has no rows to go on from"):
            Task.of_covariance(np.eye(2)).extended(np.eye(2))


DIGITS = condnum.load_small_digits()
IMAGES, LARGE = DIGITS.images.reshape(-1, 64)[:800] / 16.0, DIGITS.labels[:800] >= 5
#: Digits 0 to 4 against 5 to 9, 400 rows for each task, under four kinds of names.
NAMES = {
    "0 and 1": LARGE.astype(int),
    "1 and 0": 1 - LARGE.astype(int),
    "text": np.where(LARGE, "five to nine", "zero to four"),
    "booleans": ~LARGE,
}


class TestClasses:
    """No number may depend on how classes are called, and in which order they come."""

    def problem(self, name):
        y = NAMES[name]
        return ImmunizationProblem.from_data(IMAGES[:400], y[:400], IMAGES[400:], y[400:])

    @pytest.mark.parametrize("name", [*NAMES][1:])
    def test_their_names_and_order_change_no_number(self, name):
        right, theta = self.problem("0 and 1"), np.diag(np.geomspace(1, 10, 64))
        other = self.problem(name)
        for method in ("pareto", "max_rir", "erase", "ours", "imma"):
            options = {} if method not in ("ours", "imma") else {"steps": 5, "record_every": 0}
            a, b = (immunize(problem, method, **options) for problem in (right, other))
            # Adam divides a gradient's round-off, 1e-16, by at least 1e-8, in each of five steps of 0.1.
            np.testing.assert_allclose(b.theta, a.theta, rtol=0, atol=1e-7 * float(a.theta.abs().max()))
            if not options:
                for probe in ("benign_probe", "harmful_probe"):
                    self.same_steps(getattr(a, probe), getattr(b, probe))
        y = [NAMES[one] for one in ("0 and 1", name)]
        for mine, its in zip(right.probe_steps(theta), other.probe_steps(theta), strict=True):
            self.same_steps(mine, its)
        self.same_steps(*(probe_steps(theta, Task.of(IMAGES[400:], labels[400:])) for labels in y))
        fitted = [
            Immunizer().fit(IMAGES[:400], IMAGES[400:], labels[:400], labels[400:]).verdict_ for labels in y
        ]
        assert fitted[1].harmful_slowdown == pytest.approx(fitted[0].harmful_slowdown, rel=1e-3)

    def same_steps(self, one, other):
        """Counts may differ by the step at which round-off crosses the goal."""
        for name in ("raw", "fixed"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1)
        assert one.fit == pytest.approx(other.fit, abs=1e-12)

    @pytest.mark.parametrize("name", NAMES)
    def test_erasing_leaves_nothing_for_the_method_s_own_probe(self, name):
        found = immunize(self.problem(name), "erase")
        assert found.harmful_probe.fit <= 1e-12
        assert found.harmful_probe.fixed == np.inf

    def test_classes_have_an_intercept_and_numbers_have_none(self):
        y = NAMES["0 and 1"]
        of_classes, of_numbers = Task.of(IMAGES, y).probe, Task.of(IMAGES, y.astype(float) + 0.5).probe
        assert (of_classes.intercept, of_numbers.intercept) == (True, False)
        np.testing.assert_allclose(of_classes.covariance, 800 * np.cov(IMAGES.T, bias=True), atol=1e-9)


class TestFromCovariances:
    @DRAWS
    @given(SEEDS, KINDS, st.integers(2, 9))
    def test_a_covariance_is_the_task_of_its_rows(self, seed, kind, D):
        rng = np.random.default_rng(seed)
        X = structured_rows(rng, kind, D)
        y = rng.normal(size=len(X))
        rows, found = Task.of(X, y), Task.of_covariance(X.T @ X, X.T @ y)
        assert (found.rank, found.rows) == (rows.rank, 0)
        # Eigenvalues of a product of N rows are right to N·eps·γ₁; structured rows have κ(K) < 1e10.
        np.testing.assert_allclose(found.values, rows.values, rtol=1e-14 * len(X) * rows.kappa)
        np.testing.assert_allclose(
            found.moment, rows.moment, atol=1e-12 * float(rows.values[0] * rows.energy) ** 0.5
        )
        assert found.centered() is found

    def test_a_root_that_theta_multiplies(self):
        task = Task.of(NORMAL * [1, 0, 1, 1, 0, 1])
        torch.testing.assert_close(task.root.mT @ task.root, task.covariance)
        torch.testing.assert_close(task.whitener.mT @ task.covariance @ task.whitener, torch.eye(4).double())
        assert (task.root @ task.null_basis).abs().max() < 1e-13
        assert (task.covariance @ task.null_projector).abs().max() < 1e-13
        assert (task.null_basis.shape, task.dimension) == ((6, 2), 6)

    @pytest.mark.parametrize(
        ("K", "moment", "error", "message"),
        [
            (np.diag([1.0, -0.5]), None, InvalidInputError, "semidefinite: its smallest eigenvalue is -0.5"),
            ([[1.0, 5.0], [0.0, 1.0]], None, InvalidInputError, r"symmetric, got \|K - Kᵀ\| up to"),
            (np.ones((2, 3)), None, InvalidInputError, r"must be square.*for rows pass Task.of\(X, y\)"),
            (np.zeros((2, 2)), None, RankError, "covariance has rank 0"),
            (np.eye(2), [1.0, 2, 3], InvalidInputError, r"2 inputs and moment \(3, 1\) do not fit"),
        ],
        ids=["indefinite", "not symmetric", "rows", "zero", "moment"],
    )
    def test_what_is_no_covariance_is_refused(self, K, moment, error, message):
        with pytest.raises(error, match=message):
            Task.of_covariance(K, moment)


class TestOneAnswer:
    @DRAWS
    @given(SEEDS, KINDS, st.integers(1, 70), st.integers(1, 9), st.floats(-8, 8), st.sampled_from("efd"))
    def test_all_measures_of_rows_have_one_rank(self, seed, kind, N, D, exponent, dtype):
        rng = np.random.default_rng(seed)
        exponent = exponent if dtype != "e" else 0.0  # half precision ends at 6e4
        X = (structured_rows(rng, kind, max(D, 2))[:N] * 10**exponent).astype(dtype)
        if not X.any():
            return
        task, number = Task.of(X), condition_number(X, kind="features")
        raw = condition_number(task)
        assert (number.rank, number.dimension) == (raw.rank, raw.dimension)
        assert (
            task.rank
            == number.rank
            == task.raw.rank
            == len(task.root)
            == task.through(np.eye(max(D, 2))).rank
        )
        assert number.value == pytest.approx(task.kappa, rel=1e-12)

    @pytest.mark.parametrize("least", [1e-8, 1e-12])
    def test_nearly_equal_values_are_no_immunization(self, least):
        # What any closed form can gain is below the tolerance of a ratio, 1e-6.
        task, other = np.diag([1, 1, 1 - least]), np.diag([1 - least, 1, 1])
        for P, H in ((task, task), (task, np.eye(3)), (np.eye(3), task), (task, other)):
            for method in ("pareto", "max_rir"):
                found = immunize(ImmunizationProblem.from_covariances(P, H), method)
                assert (found.verdict.clauses.harmful_slower, found.verdict.success) == (False, False)

    def test_clause_c_asks_what_raw_features_fit(self):
        # y = 1000 + x: of its sum of squares θ loses a millionth, but all that a feature explains.
        x, z = RNG.normal(size=(2, 200))
        X = np.c_[x, z]
        P = Task.of(X, 1000 + x, intercept=True)
        found = relative_immunization_ratio(np.diag([0.0, 1.0]), P, Task.of(X))
        assert found.fit_lost == pytest.approx(1, abs=0.05)
        assert found.clauses.fit_kept is False
        assert relative_immunization_ratio(np.diag([1e-3, 1.0]), P, Task.of(X)).fit_lost == 0

    @pytest.mark.parametrize(
        ("X", "y", "message"),
        [
            (np.ones(3), None, r"X must have 2 dimension\(s\)"),
            ([[1.0, np.nan]], None, r"X holds 1 non-finite value"),
            ([[1e200, 1.0]], None, "entries up to 1e[+]200, whose squares overflow float64"),
            ([[1.0], [2.0]], [1.0], "expected one target per row, got y of shape"),
        ],
    )
    def test_rows_that_are_refused(self, X, y, message):
        with pytest.raises(InvalidInputError, match=message):
            Task.of(X, y)

    def test_what_fits_no_task_is_refused_with_the_fix(self):
        task = Task.of(NORMAL)
        with pytest.raises(
            InvalidInputError, match=r"theta has shape \(2, 6\).*it looks transposed: pass theta.T"
        ):
            task.through(np.ones((2, 6)))
        with pytest.raises(
            InvalidInputError, match=r"array of shape \(40, 6\), .*for rows pass Task.of\(X, y\)"
        ):
            condnum.rir_limit(NORMAL, NORMAL)
        with pytest.raises(InvalidInputError, match="6 inputs and the harmful task 2: both tasks must share"):
            condnum.rir_limit(task, np.eye(2))
