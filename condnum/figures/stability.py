"""The map of stability: claims × values of each choice."""

from collections.abc import Mapping
from typing import Any

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

#: ColorBrewer's PuOr, as in the map of attackers: purple stands, orange does not.
_SCALE = "PuOr"

#: Pixels of a row, below a panel, from a panel to the titles of its columns, of claims, and of the title.
_ROW, _BELOW, _TITLE, _LEFT, _ABOVE = 36, 130, 58, 178, 117


def claim_label(claim: str, method: str) -> str:
    """Return a claim in two lines, with the method's label in place of its name."""
    return claim.replace(f"{method} ", f"{method_style(method).label}<br>", 1)


def stability_map(by_axis: pd.DataFrame, labels: Mapping[str, str], subtitle: str) -> Any:
    """Draw the share of cells that agree with each claim, at every value of every choice.

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
        claims = list(part["claim"].unique())[::-1]
        edges, columns, ticks = [0.0], list[tuple[str, str]](), dict[float, str]()
        for axis, title in TITLES.items():
            values = part[part["axis"] == axis].sort_values("order").drop_duplicates("value")
            if values.empty:
                continue
            if columns:
                columns.append(("gap before", axis))
                edges.append(edges[-1] + 0.4)
            start = edges[-1]
            for place, (value, default) in enumerate(zip(values["value"], values["default"], strict=True)):
                shown = _VALUES.get(value, value)
                ticks[start + place + 0.5] = f"<b>{shown}</b>" if default else shown
                columns.append((axis, value))
                edges.append(start + place + 1)
            figure.add_annotation(
                x=start + len(values) / 2, y=-0.5, yshift=-_TITLE, text=f"<i>{title}</i>", showarrow=False,
                yanchor="top", row=row, col=1,
            )  # fmt: skip
        text = part["share"].map(_percent)
        hover = [
            f"{TITLES[found.axis].replace('<br>', ' ')}: {found.value}<br>{found.agree:,} of {found.cells:,} "
            f"cells agree; the claim stands in {found.stands:,} of {found.settings:,} settings"
            for found in part.itertuples()
        ]
        wide = part.assign(text=text, hover=hover).pivot(index="claim", columns=["axis", "value"])
        share = wide["share"].reindex(index=claims, columns=columns)
        text, hover = (
            wide[name].reindex(index=claims, columns=columns, fill_value="").fillna("")
            for name in ("text", "hover")
        )
        figure.add_heatmap(
            z=share, x=edges, y=list(range(len(claims))), text=text, customdata=hover,
            colorscale=_SCALE, texttemplate="%{text}", textfont={"size": 12}, zmin=0, zmax=1, xgap=2, ygap=2,
            showscale=False, hoverongaps=False, hovertemplate="%{customdata}<extra></extra>", row=row, col=1,
        )  # fmt: skip
        figure.update_xaxes(
            tickvals=list(ticks), ticktext=list(ticks.values()), tickangle=-45, showgrid=False,
            zeroline=False, row=row, col=1,
        )  # fmt: skip
        figure.update_yaxes(
            tickvals=list(range(len(claims))), ticktext=[labels.get(claim, claim) for claim in claims],
            range=[-0.5, len(claims) - 0.5], showgrid=False, zeroline=False, tickfont_size=11, row=row, col=1,
        )  # fmt: skip
    note = f"{subtitle}<br>Percent of cells that agree, whatever else is chosen; bold: the default"
    height = plot + _ABOVE + _BELOW
    finish(figure, "Which claims stand, and on which choice they hang", note, height=height)
    figure.update_layout(margin={"l": _LEFT, "t": _ABOVE, "b": _BELOW})
    return figure.update_xaxes(showline=False, ticks="").update_yaxes(showline=False, ticks="")


def _percent(share: float) -> str:
    """Write a share in percent; only all is 100, and only none is 0.

    Examples:
        >>> [_percent(share) for share in (1.0, 0.999, 0.43, 0.001, 0.0)]
        ['100', '>99', '43', '<1', '0']
    """
    if 0.99 < share < 1:
        return ">99"
    return "<1" if 0 < share < 0.01 else f"{100 * share:.0f}"
