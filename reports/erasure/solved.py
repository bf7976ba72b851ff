"""Draw README's picture from `tables/results.csv`: `python reports/erasure/solved.py` (extra `viz`, kaleido and a Chromium)."""

from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

FOLDER = Path(__file__).parent
BARS = {"raw": ("raw features", "#8A8A8A"), "pareto": ("immunized<br>(pareto)", "#56B4E9"), "erase": ("erased", "#B8405E")}

table = pd.read_csv(FOLDER / "tables" / "results.csv").query("pair == 'digits-8x8'")
scores = {name: 100 * table.loc[table["extractor"] == name, "harmful_linear"].mean() for name in BARS}
labels = [*(label for label, _ in BARS.values()), "chance"]
values = [*scores.values(), 100 * table["chance_harmful"].mean()]
colors = [*(color for _, color in BARS.values()), "#C8C8C8"]
for name, template, paper in (("solved", "plotly_white", "#ffffff"), ("solved_dark", "plotly_dark", "#0d1117")):
    bars = go.Bar(x=labels, y=values, marker_color=colors, text=[f"{v:.0f} %" for v in values], textposition="outside", cliponaxis=False)
    figure = go.Figure(bars).update_layout(
        template=template, paper_bgcolor=paper, plot_bgcolor=paper, font_size=17, bargap=0.45, width=840, height=360,
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        title={"text": "Slowing is not stopping: what an attacker who solves for the head learns", "font_size": 18, "x": 0.02},
    )  # fmt: skip
    figure.update_yaxes(title_text="accuracy on unseen images", range=[0, 112], tickvals=[0, 25, 50, 75, 100], ticksuffix=" %")
    figure.write_image(FOLDER / f"{name}.png", scale=2)
