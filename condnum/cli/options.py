"""The options that every `condnum run …` command shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from condnum.errors import DataNotFoundError, UnknownNameError


class Features(StrEnum):
    """The feature sets of the house-price data."""

    PUBLISHED = "published"
    CLEAN = "clean"


def whole_number(least: int) -> Callable[[str | int], int]:
    """Return a parser whose message names the value, which typer's own does not.

    Examples:
        >>> whole_number(1)("3")
        3
        >>> whole_number(1)("0")
        Traceback (most recent call last):
            ...
        typer...BadParameter: '0' is no whole number of at least 1.
    """

    def number(text: str | int) -> int:
        """Read the number or refuse the text."""
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise typer.BadParameter(f"'{text}' is no whole number of at least {least}.")
        return value

    return number


#: Read by `main` before anything is parsed; declared so that it stands in every help text.
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        metavar="auto|embedded|PATH",
        help="auto: the real data, from CONDNUM_DATA, ./data, the user cache or condnum's box; embedded: "
        "small data of scikit-learn; or a file or folder.",
    ),
]
MethodsOption = Annotated[
    str | None,
    typer.Option("--methods", metavar="A,B,…", help="Methods, comma-separated; default: the notebook's."),
]
SeedsOption = Annotated[
    int,
    typer.Option("--seeds", metavar="N", parser=whole_number(1), help="How many seeds: 0, 1, 2, …"),
]
EpochsOption = Annotated[
    int | None,
    typer.Option(
        "--epochs",
        metavar="N",
        parser=whole_number(1),
        help="Epochs of immunization; default: the notebook's.",
    ),
]
FeaturesOption = Annotated[
    Features, typer.Option("--features", help="The paper's columns, or those without Id and zoning.")
]
RowsOption = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        parser=whole_number(0),
        help="Rows of each task, 0 for all; default: the notebook's.",
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="auto|cpu|cuda", help="Where to compute.")]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        "-j",
        metavar="N",
        parser=whole_number(0),
        help="Worker processes; 0: one for each core.",
    ),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Folder of the results.", show_default="runs/…")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]


def method_list(methods: str | None, names: Callable[[], Sequence[str]]) -> str | None:
    """Check a comma-separated list of methods.

    Examples:
        >>> method_list("ours, imma,ours", lambda: ["ours", "imma"])
        'ours,imma'
    """
    if methods is None:
        return None
    wanted = list(dict.fromkeys(word.strip() for word in methods.split(",") if word.strip()))
    valid = list(names())
    for name in wanted or [methods]:
        if name not in valid:
            raise UnknownNameError("method", name, valid)
    return ",".join(wanted)


def data_source(data: str, words: Sequence[str] = ("auto", "embedded")) -> str:
    """Check where data come from before a kernel is started for them.

    Examples:
        >>> data_source("embedded")
        'embedded'
    """
    if data in words:
        return data
    path = Path(data).expanduser()
    if not path.exists():
        raise DataNotFoundError(
            f"--data {data}: there is no such file or folder; give an existing path, or one of the words "
            f"{', '.join(words)} (auto ends in condnum's box)."
        )
    return str(path)


def default_folder(experiment: str, data: str) -> Path:
    """Return the folder of a run that names none.

    Examples:
        >>> default_folder("house-prices", "/data/My Houses.csv").as_posix()
        'runs/house-prices-my-houses'
    """
    slug = "-".join("".join(c if c.isalnum() else " " for c in Path(data).stem.lower()).split())
    return Path("runs") / f"{experiment}-{slug or 'data'}"
