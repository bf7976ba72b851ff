"""Data: one loader per data set, which returns a `TaskPair` or `Digits`; image folders as `ImageData`."""

from condnum.data.catalog import data_status
from condnum.data.digits import Digits, digit_pair, load_mnist_images, load_small_digits
from condnum.data.house_prices import load_house_prices
from condnum.data.pairs import load_diabetes_tasks
from condnum.data.task_pair import Provenance, TaskPair, sha256_arrays

__all__ = [
    # task pairs
    "TaskPair",
    "Provenance",
    "Digits",
    "digit_pair",
    # loaders
    "load_house_prices",
    "load_mnist_images",
    "load_small_digits",
    "load_diabetes_tasks",
    # what is here, and is it whole
    "data_status",
    "sha256_arrays",
]
