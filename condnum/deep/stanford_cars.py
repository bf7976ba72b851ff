"""Stanford Cars in its original files, which torchvision keeps: flat image folders and a devkit.

`cars_train/*.jpg` with `devkit/cars_train_annos.mat`, `cars_test/*.jpg` with
`cars_test_annos_withlabels.mat` (beside or in the devkit), class names in `devkit/cars_meta.mat`.
The .mat files are MATLAB 5 tables: SciPy parses them as data and runs nothing that they hold.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from condnum.deep.image_data import ImageData
from condnum.deep.image_sources import ChecksumMode, FileImages
from condnum.errors import DataFormatError, DataNotFoundError

_ANNOTATIONS = {
    "train": ("cars_train", ("devkit/cars_train_annos.mat",)),
    "test": ("cars_test", ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")),
}


def is_devkit(root: Path) -> bool:
    """Tell whether a folder holds the original files."""
    return (root / "devkit" / "cars_meta.mat").is_file() and (root / "cars_train").is_dir()


def open_devkit(root: Path, split: str, *, checksum: ChecksumMode = "auto") -> ImageData:
    """Open a split of the original files."""
    if split not in _ANNOTATIONS:
        raise DataNotFoundError(f"Stanford Cars has the splits train and test, not '{split}'.")
    folder, candidates = _ANNOTATIONS[split]
    path = next((root / name for name in candidates if (root / name).is_file()), None)
    if path is None:
        raise DataNotFoundError(
            f"{root}: {' or '.join(candidates)} is missing; it holds the labels of {folder}/ (the "
            "annotations of the devkit's own test file have none)."
        )
    classes = tuple(
        str(name) for name in np.atleast_1d(_read(root / "devkit" / "cars_meta.mat", "class_names"))
    )
    rows = np.atleast_1d(_read(path, "annotations"))
    if rows.dtype.names is None or not {"fname", "class"} <= set(rows.dtype.names):
        raise DataFormatError(
            f"{path}: 'annotations' must have the fields 'fname' and 'class', as the devkit has."
        )
    files = tuple(str(name) for name in rows["fname"])
    outside = [name for name in files if Path(name).name != name]
    if outside:
        raise DataFormatError(f"{path}: '{outside[0]}' is not the name of a file in {folder}/.")
    missing = next((name for name in files if not (root / folder / name).is_file()), None)
    if missing is not None:
        raise DataNotFoundError(
            f"{root / folder / missing} is missing, but {path} lists it; unpack {folder} anew."
        )
    return ImageData(
        name=str(root),
        split=split,
        classes=classes,
        labels=np.array([int(c) - 1 for c in rows["class"]]),  # MATLAB counts from 1
        source=FileImages(root / folder, files, checksum),
        positions=np.arange(len(files)),
    )


def _read(path: Path, field: str) -> Any:
    """Return one variable of a .mat file."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, squeeze_me=True, variable_names=[field])
    except (MatReadError, ValueError, TypeError, NotImplementedError, OSError) as error:
        raise DataFormatError(
            f"{path} cannot be read as a MATLAB 5 file ({error}); fetch it again."
        ) from error
    if field not in content:
        raise DataFormatError(f"{path} has no variable '{field}'; it is not the file of the devkit.")
    return content[field]
