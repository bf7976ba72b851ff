"""The map of stability: claims × values of each choice."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from condnum.figures.style import finish, method_style, panels

#: What stands under the columns of each axis.
TITLES = {
    "convention": "κ",
    "rtol": "rank tolerance<br>(compact)",
    "epsilon": "ε (ridge)",
    "scale": "θ (ridge)",
    "images": "images",
    "draw": "draw of<br>groups",
    "seed": "seed",
}
_VALUES = {"as_trained": "as trained", "-1": "worst"}

#: Pixels of a row, below a panel, left of the panels, and above the first.
_ROW, _BELOW, _LEFT, _ABOVE = 36, 140, 178, 117


def claim_label(claim: str, method: str) -> str:
    """Return a claim in two lines, with the method's label in place of its name."""
    return claim.replace(f"{method} ", f"{method_style(method).label}<br>", 1)


def stability_map(by_axis: pd.DataFrame, labels: Mapping[str, str], subtitle: str) -> Any:
    """Draw the fraction of cells that agree with each claim, at every value of every choice.

    `by_axis` is a table of `condnum run stability`; the claims in it get `labels`.
    """
    names = list(by_axis["experiment"].unique())
    counts = [by_axis.loc[by_axis["experiment"] == name, "claim"].nunique() for name in names]
    plot = _ROW * sum(counts) + _BELOW * (len(names) - 1)
    figure = panels(
        rows=len(names), cols=1, row_heights=counts, subplot_titles=[f"<b>{name}</b>" for name in names],
        vertical_spacing=_BELOW / plot if len(names) > 1 else 0,
    )  # fmt: skip
    figure.update_annotations(x=0, xanchor="left", font_size=14)
    for row, name in enumerate(names, start=1):
        part = by_axis[by_axis["experiment"] == name]
        part = part.assign(place=part["axis"].map([*TITLES].index)).sort_values(["place", "order"])
        claims = list(dict.fromkeys(part["claim"]))
        values = part["value"].replace(_VALUES)
        figure.add_heatmap(
            x=[part["axis"].map(TITLES), np.where(part["default"], "<b>" + values + "</b>", values)],
            y=part["claim"], z=part["share"], zmin=0, zmax=1, colorscale="PuOr", showscale=False,
            text=part["share"].map(_percent), texttemplate="%{text}", textfont={"size": 12},
            hovertext=[
                f"{found.agree:,} of {found.cells:,} cells agree; the claim holds in {found.stands:,} of "
                f"{found.settings:,} settings" for found in part.itertuples()
            ],
            hovertemplate="%{x}<br>%{hovertext}<extra></extra>", hoverongaps=False, xgap=2, ygap=2,
            row=row, col=1,
        )  # fmt: skip
        words = [labels.get(claim, claim) for claim in claims]
        figure.update_yaxes(tickvals=claims, ticktext=words, row=row, col=1)
    figure.update_xaxes(type="multicategory").update_yaxes(autorange="reversed", tickfont_size=11)
    note = f"{subtitle}<br>Percentage of cells that agree, over all other choices; bold: the default"
    height = plot + _ABOVE + _BELOW
    finish(figure, "Which claims hold, and on which choices they depend", note, height=height)
    bare = {"showline": False, "ticks": "", "showgrid": False, "zeroline": False}
    figure.update_xaxes(tickangle=-45, **bare).update_yaxes(**bare)
    return figure.update_layout(margin={"l": _LEFT, "t": _ABOVE, "b": _BELOW})


def _percent(share: float) -> str:
    """Write a share in percent; only all is 100, and only none is 0.

    Examples:
        >>> [_percent(share) for share in (1.0, 0.999, 0.43, 0.001, 0.0)]
        ['100', '>99', '43', '<1', '0']
    """
    if 0.99 < share < 1:
        return ">99"
    return "<1" if 0 < share < 0.01 else f"{100 * share:.0f}"
