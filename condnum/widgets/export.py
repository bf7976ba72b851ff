"""What an explorer exports: its figure as an offline page or a picture, its data as a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from condnum.errors import MissingExtraError
from condnum.extras import require

#: Size of an exported picture in pixels, before `PNG_SCALE`.
PNG_WIDTH, PNG_SCALE = 1200, 2


def html_bytes(figure: Any, table: pd.DataFrame) -> bytes:
    """Return the figure as one page that works offline."""
    return str(figure.to_html(include_plotlyjs=True, full_html=True)).encode()


def png_bytes(figure: Any, table: pd.DataFrame) -> bytes:
    """Return the figure as a picture."""
    require("kaleido", "viz")
    try:
        return bytes(figure.to_image(format="png", width=PNG_WIDTH, scale=PNG_SCALE))
    except (ValueError, RuntimeError) as error:
        raise MissingExtraError(
            f"a PNG needs kaleido and a Chromium or Chrome that starts ({error}); install both, "
            "or use the camera above the figure, which works in the browser."
        ) from error


def csv_bytes(figure: Any, table: pd.DataFrame) -> bytes:
    r"""Return the data as comma-separated values.

    Examples:
        >>> csv_bytes(None, pd.DataFrame({"t": [0, 1], "norm_ratio": [1.0, 0.25]}))
        b't,norm_ratio\n0,1.0\n1,0.25\n'
    """
    return str(table.to_csv(index=False)).encode()


#: How each kind of file is made, and its media type.
EXPORTS: dict[str, tuple[Callable[[Any, pd.DataFrame], bytes], str]] = {
    "html": (html_bytes, "text/html"),
    "png": (png_bytes, "image/png"),
    "csv": (csv_bytes, "text/csv"),
}
