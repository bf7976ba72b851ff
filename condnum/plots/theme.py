"""The look of the teaching figures: large enough to project, readable light on dark and dark on light.

Every colour here has a contrast of at least 3 : 1 against both backgrounds (white and `#111111`) and
belongs to the Okabe–Ito palette, which the common forms of colour-blindness keep apart; a line that
matters has a dash or a marker of its own besides.
"""

from __future__ import annotations

from typing import Any

from condnum.plots.style import finish

#: Roles of colours, the same in every teaching figure.
BLUE, ORANGE, GREEN, PURPLE = "#2E86C8", "#D55E00", "#009E73", "#CC79A7"
NEUTRAL = "#8A8A8A"
#: Font size of labels that are powers of ten: plotly enlarges them by a quarter.
POWER_SIZE = 12

_LIGHT = "white"  # background of the template that `finish` sets


def teaching_layout(figure: Any, title: str, subtitle: str = "", *, height: int = 520) -> Any:
    """Give a teaching figure its title, font, margins and a legend below the panels.

    Args:
        figure: A plotly figure, changed in place.
        title: What it shows.
        subtitle: What lines and marks mean; may be empty.
        height: In pixels.

    Returns:
        The figure.
    """
    finish(figure, title, subtitle, height=height)
    figure.layout.title.text = f"{title}<br><sup>{subtitle}</sup>" if subtitle else title
    figure.update_layout(
        font_size=15,
        title_font_size=20,
        title_y=0.94 if subtitle else 0.97,
        margin={"l": 80, "r": 24, "t": 100 if subtitle else 76, "b": 120},
        legend={
            "orientation": "h", "x": 0.5, "xanchor": "center", "yref": "container", "y": 0.01,
            "yanchor": "bottom", "title_text": "", "itemsizing": "constant",
        },
        hovermode="closest",
    )  # fmt: skip
    return figure


def apply_theme(figure: Any, *, dark: bool) -> Any:
    """Set the background of a figure.

    Args:
        figure: A plotly figure, changed in place.
        dark: Light on dark.

    Returns:
        The figure.

    Examples:
        >>> import plotly.graph_objects as go
        >>> apply_theme(go.Figure(), dark=True).layout.template.layout.paper_bgcolor
        'rgb(17,17,17)'
    """
    if dark or figure.layout.template.layout.paper_bgcolor != _LIGHT:  # setting it is slow
        figure.update_layout(template="plotly_dark" if dark else "plotly_white")
    return figure
