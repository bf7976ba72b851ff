"""Figures of stability: a map of claims × values of each choice, and how RIR_θ0 settles with its groups."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from condnum.figures.style import finish, log_axis, method_style, panels, translucent

#: What stands under the columns of each axis.
TITLES = {
    "convention": "κ",
    "rtol": "rank tolerance<br>(compact)",
    "epsilon": "ε (ridge)",
    "scale": "θ (ridge)",
    "images": "images",
    "group_size": "group size",
    "draw": "draw of<br>groups",
    "budget": "epochs",
    "seed": "seed",
}
_VALUES = {"as_trained": "as trained", "-1": "worst"}

#: ColorBrewer's PuOr, as in the map of attackers: purple stands, orange does not.
_SCALE = "PuOr"

#: Pixels of a row, below a panel, from a panel to the titles of its columns, of claims, and of the title.
_ROW, _BELOW, _TITLE, _LEFT, _ABOVE = 36, 130, 58, 178, 117

#: Of group sizes, from small to large: Okabe–Ito's blues, greens and reds in one order.
_COLORS = ("#56B4E9", "#0072B2", "#009E73", "#E69F00", "#D55E00", "#CC79A7", "#7F7F7F", "#000000")


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


def convergence_figure(settled: pd.DataFrame, subtitle: str) -> Any:
    """Draw a table of `rir_convergence` against the number of groups: a line a group size, a panel a net."""
    nets = list(settled.groupby(["run", "backbone", "method", "seed"], sort=False))
    names = [f"{run}: {net}, {method}, seed {seed}" for (run, net, method, seed), _ in nets]
    figure = panels(rows=len(nets), cols=1, subplot_titles=names, vertical_spacing=0.2 / len(nets))
    figure.update_annotations(x=0, xanchor="left")
    sizes, named = sorted(settled["group_size"].unique()), set[str]()
    for row, (_, net) in enumerate(nets, start=1):
        whole = net["group_size"].max()
        for size, part in net.groupby("group_size"):
            color = "#000000" if size == whole else _COLORS[sizes.index(size) % len(_COLORS)]
            name = f"all {size:,} at once" if size == whole else f"{size:,} images a group"
            if size == whole:
                part = pd.concat([part, part.assign(groups=settled["groups"].max())])
            figure.add_scatter(
                x=[*part["groups"], *part["groups"][::-1]], y=[*part["largest"], *part["least"][::-1]],
                mode="lines", fill="toself", fillcolor=translucent(color, 0.18), line={"width": 0},
                hoverinfo="skip", legendgroup=name, showlegend=False, row=row, col=1,
            )  # fmt: skip
            figure.add_scatter(
                x=part["groups"], y=part["median"], name=name, legendgroup=name, showlegend=name not in named,
                mode="lines" if size == whole else "lines+markers", customdata=part[["least", "largest"]],
                line={"color": color, "width": 2, "dash": "dot" if size == whole else "solid"},
                hovertemplate="%{x} groups: %{y:.3g}, draws %{customdata[0]:.3g}–%{customdata[1]:.3g}",
                row=row, col=1,
            )  # fmt: skip
            named.add(name)
        figure.update_yaxes(**log_axis("RIR<sub>θ₀</sub>", net[["least", "largest"]]), row=row)
    figure.update_xaxes(type="log", tickvals=sorted(settled["groups"].unique()))
    figure.update_xaxes(title_text="number of groups", row=len(nets))
    note = f"{subtitle}<br>Line: median over draws; band: all of them.<br>The groups of a draw share no image"
    height = 280 + 300 * len(nets)
    finish(figure, "How RIR<sub>θ₀</sub> settles with its groups", note, height=height)
    legend = {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "title_text": ""}
    return figure.update_layout(legend=legend, margin_b=150)
