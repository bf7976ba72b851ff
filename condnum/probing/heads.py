"""Attackers who train a head on released features, scored on rows that they did not see: accuracy or R²."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from condnum.arrays import FloatArray, TargetKind

#: Rows that a kernel trains on at most: its cost is their cube.
NONLINEAR_ROWS = 1_500
#: Trees of a forest.
_TREES = 50


class Sample(NamedTuple):
    """Rows of one task with their targets; whether these are labels is decided on all rows of the task."""

    X: FloatArray
    y: FloatArray
    labels: bool

    @property
    def kind(self) -> TargetKind:
        """The arguments of `erasure`."""
        return "classification" if self.labels else "regression"

    @property
    def columns(self) -> FloatArray:
        """Labels as one column per class, other targets as one column."""
        if not self.labels:
            return self.y.reshape(len(self.y), -1)
        return np.asarray(self.y[:, None] == np.unique(self.y), dtype=np.float64)

    @property
    def centered(self) -> tuple[FloatArray, FloatArray]:
        """Rows and target columns less their means: a probe with an intercept."""
        return self.X - self.X.mean(axis=0), self.columns - self.columns.mean(axis=0)


def chance(test: Sample) -> float:
    """Return what the best constant answer reaches on test rows: the most frequent class, or R² = 0."""
    return float(np.unique(test.y, return_counts=True)[1].max() / len(test.y)) if test.labels else 0.0


def score(predicted: FloatArray, train: Sample, test: Sample) -> float:
    """Return accuracy, or R² against the mean of the test targets; predictions are `(M, C)` or `(M,)`."""
    predicted = predicted.reshape(len(test.y), -1)
    if train.labels:
        return float((np.unique(train.y)[predicted.argmax(axis=1)] == test.y).mean())
    least, most = train.columns.min(axis=0), train.columns.max(axis=0)
    known = predicted.clip(least, most)  # one odd row decides R² otherwise
    residual = ((known - test.columns) ** 2).sum()
    return float(1 - residual / ((test.columns - test.columns.mean(axis=0)) ** 2).sum())


def linear_heads(
    train: Sample, rows: FloatArray, every: bool = True, *, penalized: bool = True
) -> Iterator[tuple[str, FloatArray]]:
    """Yield each linear head that an attacker may train, with its predictions `(M, C)` of rows.

    Ridge and logistic regression choose their penalty or have a tolerance; the others have none, so that they
    read what is left in round-off: scikit-learn's defaults, whitening by every singular value and by the
    first principal components, LAPACK's least squares. All of them run in float64 and in float32; unless
    `every`, only ridge and logistic regression do, in float64; unless `penalized`, these two are left out.
    """
    from sklearn.decomposition import PCA
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LinearRegression, LogisticRegression, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels, means = train.labels, train.columns.mean(axis=0)
    head = LinearDiscriminantAnalysis if labels else LinearRegression
    for name, dtype in (("", np.float64), (" (float32)", np.float32))[: 1 + every]:
        F, G = train.X.astype(dtype), rows.astype(dtype)
        scaler, white = StandardScaler().fit(F), PCA(whiten=True, svd_solver="covariance_eigh").fit(F)
        kept = white.explained_variance_ > 1e-12 * white.explained_variance_[0]
        spaces = {"": (F, G), ", standardized": (scaler.transform(F), scaler.transform(G))}
        if kept.any():
            spaces[", whitened"] = white.transform(F)[:, kept], white.transform(G)[:, kept]
        for space, (A, B) in spaces.items() if penalized else ():
            size = np.sqrt((A**2).sum(axis=1).mean()) or 1.0
            ridge = RidgeCV(np.geomspace(1e-8, 10, 10) * len(A) / A.shape[1]).fit(A / size, train.columns)
            yield f"ridge regression{space}{name}", ridge.predict(B / size)
            if labels and space:
                yield (
                    f"logistic regression{space}{name}",
                    _quietly(LogisticRegression(max_iter=200), A, train, B),
                )
        if not every:
            break
        defaults = make_pipeline(
            StandardScaler(), PCA(whiten=True), (LogisticRegression if labels else head)()
        )
        yield f"scikit-learn's defaults{name}", _quietly(defaults, F, train, G)
        A, B = _whitened(F, G)
        yield f"every singular value{name}", _quietly(head(), A, train, B)
        r = _components(F, train.columns)
        yield f"first principal components{name}", _quietly(head(), A[:, :r], train, B[:, :r])
        centers = F.mean(axis=0)
        for library, solve in (("NumPy", np.linalg.lstsq), ("SciPy", scipy.linalg.lstsq)):
            weights = solve(F - centers, train.columns - means)[0]
            yield f"{library}'s least squares{name}", (G - centers) @ weights + means


def _whitened(F: NDArray[Any], G: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Whiten rows by every singular value of F."""
    mean = F.mean(axis=0)
    _, s, V = np.linalg.svd(F - mean, full_matrices=False)
    every = V.T / np.where(s > 0, s, 1) * len(F) ** 0.5
    return (F - mean) @ every, (G - mean) @ every


def _components(F: NDArray[Any], columns: FloatArray) -> int:
    """Return how many principal components predict a third of the rows best, after training on the others."""
    third = np.arange(len(F)) % 3 == 0
    A, B = _whitened(F[~third], F[third])
    Y, mean = columns[third], columns[~third].mean(axis=0)
    weights, found = A.T @ (columns[~third] - mean) / len(A), dict[int, float]()
    for r in np.unique(np.geomspace(1, A.shape[1], 12).astype(int)).tolist():
        predicted = B[:, :r] @ weights[:r] + mean
        wrong = predicted.argmax(axis=1) != Y.argmax(axis=1) if Y.shape[1] > 1 else (predicted - Y) ** 2
        found[r] = float(wrong.mean())
    return min(found, key=lambda r: found[r])


def _quietly(model: Any, F: NDArray[Any], train: Sample, rows: NDArray[Any]) -> FloatArray:
    """Fit a model of scikit-learn, which need not converge, and predict `(M, C)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not train.labels:
            return np.asarray(model.fit(F, train.columns).predict(rows)).reshape(len(rows), -1)
        return np.asarray(model.fit(F, train.y).predict_proba(rows))


def linear_score(train: Sample, test: Sample) -> float:
    """Return the score of the better of ridge and logistic regression on test rows."""
    return max(score(predicted, train, test) for _, predicted in linear_heads(train, test.X, every=False))


def nonlinear_score(train: Sample, test: Sample, *, degree: int | None = None) -> float:
    """Return the score of kernel ridge regression: RBF, or all polynomials of that degree.

    Cross-validation on its own rows chooses width and penalty.
    """
    mean = train.columns[:NONLINEAR_ROWS].mean(axis=0)
    predicted = _kernel_ridge(train.X, train.columns - mean, test.X, degree)
    return score(predicted + mean, train, test)


def tree_score(train: Sample, test: Sample) -> float:
    """Return the score of extremely randomized trees (Geurts et al. 2006), with √D features per split."""
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    options: dict[str, Any] = {"n_estimators": _TREES, "max_features": "sqrt", "random_state": 0}
    if train.labels:
        return float(ExtraTreesClassifier(**options).fit(train.X, train.y).score(test.X, test.y))
    numbers = ExtraTreesRegressor(**options).fit(train.X, train.columns.squeeze())
    return score(numbers.predict(test.X), train, test)


def _kernel_ridge(F: FloatArray, Y: FloatArray, G: FloatArray, degree: int | None = None) -> FloatArray:
    """Return predictions `(M, C)` for features G after training on F and Y."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    grid = {"gamma": np.array([0.1, 0.3]) / F.shape[1], "alpha": [1e-2, 1e-1]}
    kernel: Any = KernelRidge(kernel="rbf")
    if degree is not None:
        kernel = KernelRidge(kernel="poly", degree=degree)
        grid = {"gamma": np.array([0.1, 1, 10]) / F.shape[1], "alpha": np.geomspace(1e-6, 100, 9)}
    model = make_pipeline(StandardScaler(), GridSearchCV(kernel, grid, cv=3))
    return np.asarray(model.fit(F[:NONLINEAR_ROWS], Y[:NONLINEAR_ROWS]).predict(G)).reshape(len(G), -1)


def relearned_score(features: FloatArray, inputs: FloatArray, train: Sample, test: Sample) -> float:
    """Return the better of a linear and a kernel head on inputs that are predicted from their features.

    The attacker learns the way back from `features` of `inputs` `(N, D)` of another task, by kernel ridge
    regression; `train` and `test` hold features.
    """
    back = _kernel_ridge(features, inputs, np.concatenate([train.X, test.X]))
    parts = [of._replace(X=X) for of, X in zip((train, test), np.split(back, [len(train.X)]), strict=True)]
    return max(linear_score(*parts), nonlinear_score(*parts))


def head_scores(train: Sample, test: Sample) -> tuple[float, ...]:
    """Return what heads of labels reach: linear, quadratic, RBF kernel, nearest neighbors, a small net."""
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    net = MLPClassifier(max_iter=300, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the net need not converge
        others = [
            float(model.fit(train.X, train.y).score(test.X, test.y))
            for model in (KNeighborsClassifier(), make_pipeline(StandardScaler(), net))
        ]
    smooth = nonlinear_score(train, test, degree=2), nonlinear_score(train, test)
    linear = max(score(predicted, train, test) for _, predicted in linear_heads(train, test.X))
    return linear, *smooth, *others
