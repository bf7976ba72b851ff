"""Labeled images of digits, MNIST's and scikit-learn's, and the task pair of two digits (Sec. 5.1)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from condnum.data.files import DataFiles, Source, embedded, obtain
from condnum.data.task_pair import Float64Array, Provenance, TaskPair
from condnum.errors import DataFormatError, DataNotFoundError, InvalidInputError, check_known, require
from condnum.files import opened, output_folder, user_cache

MnistSplit = Literal["train", "test"]

#: Mean and standard deviation of the pixels of the 60,000 training images in [0, 1].
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


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
        if images.ndim != 3 or labels.shape != (len(images),) or not images.size or labels.max() > 9:
            raise DataFormatError(
                f"{self.name}: expected images (N, h, w) and labels (N,) from 0 to 9 with N ≥ 1, got "
                f"{images.shape}, {labels.shape} and labels up to {labels.max(initial=0)}; use two files of "
                "the same set."
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

    def smaller_count(self, benign: int, harmful: int) -> int:
        """Return the number of images to which both digits of a pair are cut."""
        count = min(self.counts[benign], self.counts[harmful])
        if count < 2:
            raise InvalidInputError(
                f"{self.name} has {self.counts[benign]} image(s) of {benign} and "
                f"{self.counts[harmful]} of {harmful}; each digit needs at least 2: choose other pairs, or "
                "data with both digits."
            )
        return count

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the h·w pixels in reading order: r0c0, r0c1 and so on."""
        return tuple(f"r{r}c{c}" for r, c in np.ndindex(self.images.shape[1:]))

    def pixels(self, index: NDArray[np.integer] | slice = slice(None)) -> Float64Array:
        """Return images as rows of normalized pixels, `(x/pixel_max − mean)/std`."""
        chosen = self.images[index]
        return (chosen.reshape(len(chosen), -1) / self.pixel_max - self.mean) / self.std


def digit_pair(digits: Digits, benign: int, harmful: int, *, seed: int = 0) -> TaskPair:
    """Build the pair (p, h): K_P from the images of digit p, K_H from those of digit h.

    Both digits are reduced to the smaller count n, in file order. The loss and the probe use a balanced
    sample: the n images of the digit (label 1) alternate with n images of the other nine digits (label 0),
    drawn without replacement.

    Args:
        digits: Labeled images.
        benign: Digit p of D_P.
        harmful: Digit h of D_H, not p.
        seed: Seed of the local generator that draws the other digits.

    Returns:
        `X_P` and `X_H` `(n, h·w)`; `y_P`, `y_H` constant; `X_loss`, `X_probe` `(2n, h·w)` with `y_loss`,
        `y_probe` in {0, 1}.

    Raises:
        InvalidInputError: Not two different digits 0–9, or fewer than two images of one.

    Examples:
        >>> pair = digit_pair(load_small_digits(), 3, 8)
        >>> pair.X_P.shape, pair.loss_sample[0].shape, float(pair.loss_sample[1].mean())
        ((174, 64), (348, 64), 0.5)
    """
    if benign == harmful or not {benign, harmful} <= set(range(10)):
        raise InvalidInputError(f"give two different digits 0 to 9, got {benign!r} and {harmful!r}.")
    count, arrays = digits.smaller_count(benign, harmful), dict[str, Any]()
    # One stream a task: the harmful draw must not depend on the size of the other.
    for stream, digit, task, sample in ((0, benign, "P", "loss"), (1, harmful, "H", "probe")):
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
        benign_name=f"digit {benign}",
        harmful_name=f"digit {harmful}",
        feature_names=digits.feature_names,
        checksum=digits.checksum,
        provenance=digits.provenance,
    )


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
    from sklearn import datasets  # takes a second

    bunch = datasets.load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    scaled = images / 16.0
    return Digits(
        images,
        labels,
        pixel_max=16.0,
        mean=float(scaled.mean()),
        std=float(scaled.std()),
        **embedded("digits-8x8", "load_digits", images=images, labels=labels),
    )


# MNIST.


def read_idx(path: str | Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzip.

    The header is `0x00 0x00 0x08 n`, then `n` sizes as big-endian 32-bit integers.
    """
    with opened(path) as stream:
        content = stream.read()
    try:
        if content[:3] != b"\0\0\x08":
            raise ValueError("it begins otherwise")
        shape = np.frombuffer(content, ">u4", count=content[3], offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (ValueError, IndexError) as error:
        raise DataFormatError(
            f"{path} is damaged, or not an IDX file of unsigned bytes ({error}); fetch it again."
        ) from error


def mnist_files(split: MnistSplit) -> DataFiles:
    """Return the two files of a split, in torchvision's layout."""
    check_known("split", split, get_args(MnistSplit))
    stem = "t10k" if split == "test" else "train"
    return DataFiles(
        "mnist-test" if split == "test" else "mnist",
        "MNIST/raw",
        (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"),
        "These are the IDX files of the MNIST database as torchvision stores them. The 10,000 test images "
        "are bundled; for all 70,000 images, run condnum data download.",
    )


def load_mnist_images(source: Source = "auto", split: MnistSplit | None = None) -> Digits:
    """Load the images and labels of MNIST, unchanged, with the usual pixel normalization noted.

    Args:
        source: `auto` (local files, else the bundled data), or a folder: a data folder, or the one with the
            files.
        split: `train` (60,000 images) or `test` (10,000, which are bundled); None for the training
            images where they are, else the test images. `label` and `title()` say which.

    Returns:
        `images` (N, 28, 28) and `labels` (N,), both uint8; `mean` 0.1307 and `std` 0.3081 of the
        pixels x/255. The checksum is that of the two files' sums, uncompressed, images first.

    Raises:
        DataNotFoundError: No files here; the message says what to put where.
        DataFormatError: Not IDX, truncated, trailing bytes, labels not 0–9, or unequal counts.
        UnknownNameError: No such split.

    Examples:
        >>> load_mnist_images("auto", "test").images.shape
        (10000, 28, 28)
    """
    try:
        found = obtain(mnist_files(split or "train"), source)
    except DataNotFoundError:
        if split is not None:
            raise
        found = obtain(mnist_files("test"), source)
    which = "test" if found.dataset == "mnist-test" else "training"
    images, labels = (read_idx(path) for path in found.paths)
    return Digits(
        images, labels, pixel_max=255.0, mean=MNIST_MEAN, std=MNIST_STD, **found.about("mnist", which)
    )


def download_mnist() -> Path:
    """Download both splits of MNIST with torchvision, which checks their sums, into the user cache."""
    datasets, folder = require("torchvision.datasets", "deep"), output_folder(user_cache())
    try:
        datasets.MNIST(folder, download=True)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise DataNotFoundError(
            f"the download of MNIST failed ({reason}); if this machine is offline, put the four IDX files "
            f"into {folder / mnist_files('train').folder}."
        ) from error
    return folder / mnist_files("train").folder
