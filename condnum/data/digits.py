"""Labeled images of digits and the task pair of two of them (Sec. 5.1, Appendix C.2); scikit-learn's."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from condnum.data.resolver import KNOWN_CHECKSUMS
from condnum.data.task_pair import Float64Array, Provenance, TaskPair, sha256_arrays, standardize
from condnum.errors import DataFormatError, InvalidInputError, check_known

DiabetesFeatures = Literal["clean", "published"]


@dataclass(frozen=True, eq=False)
class Digits:
    """Images of the digits 0–9 with their labels, unchanged; `pixels` normalizes them."""

    images: NDArray[np.uint8]  # (N, h, w)
    labels: NDArray[np.uint8]  # (N,)
    name: str
    checksum: str
    pixel_max: float
    mean: float
    std: float
    provenance: Provenance

    def __post_init__(self) -> None:
        images, labels = np.array(self.images, dtype=np.uint8), np.array(self.labels, dtype=np.uint8)
        if images.ndim != 3 or labels.shape != (len(images),) or not images.size:
            raise DataFormatError(
                f"{self.name}: expected images (N, h, w) and labels (N,) with N ≥ 1, got {images.shape} and "
                f"{labels.shape}; use two files of the same set."
            )
        wrong = np.flatnonzero(labels > 9)
        if len(wrong):
            raise DataFormatError(
                f"{self.name}: labels must be 0 to 9; {len(wrong)} are not, the first at index {wrong[0]}: "
                f"{labels[wrong[0]]}."
            )
        if images.max() > self.pixel_max:
            raise DataFormatError(
                f"{self.name}: gray values must be at most {self.pixel_max:g}, got {images.max()}."
            )
        for name, array in (("images", images), ("labels", labels)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.images)

    @property
    def label(self) -> str:
        """Data set, how many images of which split, and where they were found."""
        split = self.provenance.split
        return f"{self.name}, {len(self):,} {f'{split} ' if split else ''}images, {self.provenance.source}"

    def title(self) -> str:
        """Return `label` and the first 8 digits of the SHA-256, for figure titles."""
        return f"{self.label}, SHA-256 {self.checksum[:8]}"

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each digit, `(10,)`."""
        return tuple(np.bincount(self.labels, minlength=10).tolist())

    def smaller_count(self, pretrain: int, harmful: int) -> int:
        """Return the number of images to which both digits of a pair are cut."""
        count = min(self.counts[pretrain], self.counts[harmful])
        if count < 2:
            raise InvalidInputError(
                f"{self.name} has {self.counts[pretrain]} image(s) of {pretrain} and "
                f"{self.counts[harmful]} of {harmful}; each digit needs at least 2: choose other pairs, or "
                "data with both digits."
            )
        return count

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the h·w pixels in reading order: r0c0, r0c1 and so on."""
        return tuple(f"r{r}c{c}" for r in range(self.images.shape[1]) for c in range(self.images.shape[2]))

    def pixels(self, index: NDArray[np.integer] | slice = slice(None)) -> Float64Array:
        """Return images as rows of normalized pixels, `(x/pixel_max − mean)/std`."""
        chosen = self.images[index]
        return (chosen.reshape(len(chosen), -1) / self.pixel_max - self.mean) / self.std


def digit_pair(digits: Digits, pretrain: int, harmful: int, *, seed: int = 0) -> TaskPair:
    """Build the pair (p, h): K_P from the images of digit p, K_H from those of digit h.

    Both digits are reduced to the smaller count n, in file order. The loss and the probe use a balanced
    sample: the n images of the digit (label 1) alternate with n images of the other nine digits (label 0),
    drawn without replacement.

    Args:
        digits: Labeled images.
        pretrain: Digit p of D_P.
        harmful: Digit h of D_H, not p.
        seed: Seed of the local generator that draws the other digits.

    Returns:
        `X_P` and `X_H` `(n, h·w)`; `y_P`, `y_H` constant; `X_loss`, `X_probe` `(2n, h·w)` with `y_loss`,
        `y_probe` in {0, 1}.

    Raises:
        InvalidInputError: Not two different digits 0–9, or fewer than two images of one.

    Examples:
        >>> from condnum.data import load_small_digits
        >>> pair = digit_pair(load_small_digits(), 3, 8)
        >>> pair.X_P.shape, pair.loss_sample[0].shape, float(pair.loss_sample[1].mean())
        ((174, 64), (348, 64), 0.5)
    """
    for digit, task in ((pretrain, "pretrain"), (harmful, "harmful")):
        if isinstance(digit, bool) or not isinstance(digit, int | np.integer) or not 0 <= digit <= 9:
            raise InvalidInputError(f"{task} must be a digit 0 to 9, got {digit!r}.")
    if pretrain == harmful:
        raise InvalidInputError(f"pretrain and harmful must differ, got {pretrain} for both.")
    count, arrays = digits.smaller_count(pretrain, harmful), dict[str, Any]()
    # One stream a task: the harmful draw must not depend on the size of the other.
    for stream, digit, task, sample in ((0, pretrain, "P", "loss"), (1, harmful, "H", "probe")):
        own = np.flatnonzero(digits.labels == digit)[:count]
        # The rest holds the other task's digit, of which there are `count` or more.
        rest = np.flatnonzero(digits.labels != digit)
        drawn = np.random.default_rng([seed, stream]).choice(rest, size=count, replace=False)
        arrays[f"X_{task}"], arrays[f"y_{task}"] = digits.pixels(own), np.ones(count, dtype=int)
        # Taken in turn, so that the first rows are balanced too.
        arrays[f"X_{sample}"] = digits.pixels(np.stack([own, drawn], axis=1).reshape(-1))
        arrays[f"y_{sample}"] = np.tile([1, 0], count)
    return TaskPair(
        **arrays,
        name=digits.name,
        pretrain_name=f"digit {pretrain}",
        harmful_name=f"digit {harmful}",
        feature_names=digits.feature_names,
        checksum=digits.checksum,
        provenance=digits.provenance,
        allow_constant_target=True,
    )


# Data that scikit-learn carries: nothing to fetch, the same everywhere. Its import takes a second.


def load_small_digits() -> Digits:
    """Load scikit-learn's 8×8 digits: the test half of the UCI optical recognition data set.

    E. Alpaydin and C. Kaynak (1998), https://archive.ics.uci.edu/dataset/80, CC BY 4.0.

    Returns:
        `images` (1797, 8, 8) with gray values 0–16 and `labels` (1797,); `mean` and `std` are those
        of all pixels x/16 of all images, one number each as for MNIST.

    Examples:
        >>> digits = load_small_digits()
        >>> digits.images.shape, bool(abs(digits.pixels().mean()) < 1e-12)
        ((1797, 8, 8), True)
    """
    from sklearn import __version__, datasets

    bunch = datasets.load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    checksum, scaled = sha256_arrays(images=images, labels=labels), images / 16.0
    return Digits(
        images=images,
        labels=labels,
        name="digits-8x8",
        checksum=checksum,
        pixel_max=16.0,
        mean=float(scaled.mean()),
        std=float(scaled.std()),
        provenance=Provenance(
            source="embedded",
            location=f"scikit-learn {__version__}, load_digits",
            description="Optical recognition of handwritten digits, 8×8 pixels, gray values 0 to 16.",
            known_checksum=checksum == KNOWN_CHECKSUMS["embedded/digits-8x8"],
        ),
    )


def load_diabetes_tasks(*, features: DiabetesFeatures = "clean") -> TaskPair:
    """Load the diabetes table (442×10) as a pair like the house prices: split by `sex`, two targets.

    The data are those of Efron et al. (2004), Least Angle Regression, Ann. Statist. 32(2).
    D_P predicts the body mass index `bmi` where sex is coded 1 (235 rows); D_H predicts the disease
    progression after one year where it is coded 2 (207 rows). `bmi` is a target, so it is a
    feature of neither. Raw units, then standardized per task with population deviations.

    Args:
        features: `clean` drops the split column `sex` (8 features); `published` keeps it, as the
            paper keeps MSZoning (9 features, that column is zero and both covariances are singular).

    Returns:
        `X_P` (235, D), `y_P` (235,), `X_H` (207, D), `y_H` (207,).

    Raises:
        UnknownNameError: Unknown `features`.

    Examples:
        >>> pair = load_diabetes_tasks()
        >>> pair.rows_pretrain, pair.rows_harmful, pair.dimension
        (235, 207, 8)
    """
    check_known("feature set", features, get_args(DiabetesFeatures))
    from sklearn import __version__, datasets

    bunch = datasets.load_diabetes(scaled=False)
    # The file has four decimals; scikit-learn before 1.8 reads eleven values off by one in the last place.
    data, target = np.asarray(bunch.data, np.float64).round(4), np.asarray(bunch.target, np.float64)
    columns = [str(name) for name in bunch.feature_names]
    checksum = sha256_arrays(data=data, target=target)
    dropped = {"bmi", "sex"} if features == "clean" else {"bmi"}
    kept = [i for i, name in enumerate(columns) if name not in dropped]
    sex, bmi = data[:, columns.index("sex")], data[:, columns.index("bmi")]
    return TaskPair(
        X_P=standardize(data[sex == 1][:, kept]),
        y_P=standardize(bmi[sex == 1]),
        X_H=standardize(data[sex == 2][:, kept]),
        y_H=standardize(target[sex == 2]),
        name="diabetes",
        pretrain_name="bmi, sex coded 1",
        harmful_name="disease progression, sex coded 2",
        feature_names=tuple(columns[i] for i in kept),
        checksum=checksum,
        provenance=Provenance(
            source="embedded",
            location=f"scikit-learn {__version__}, load_diabetes(scaled=False)",
            description="Diabetes patients: ten baseline variables, disease progression a year later.",
            known_checksum=checksum == KNOWN_CHECKSUMS["embedded/diabetes"],
        ),
    )
