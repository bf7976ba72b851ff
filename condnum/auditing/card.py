"""The card of an audit, the same in the terminal and on the page; the table and figure of all attackers."""

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from condnum.auditing.audit import Audit
from condnum.auditing.lights import LIGHTS, WIDE_FEATURES, class_lights, worst_light
from condnum.auditing.rows import GROUPS, WIDEST_GROUPS
from condnum.numbers import number, times
from condnum.page.look import DOTTED, GREEN, GREY, NEUTRAL, ORANGE
from condnum.page.style import express, finish
from condnum.page.tables import formula_html
from condnum.probing.panel import RAW
from condnum.probing.race import MOST_OUTPUTS
from condnum.theory.slowdown import LOST_FACTOR

#: Characters of a line in the terminal.
WIDTH = 110
#: How extractors are called that have no name of their own.
LABEL_OF = {
    RAW: "raw features",
    "theta": "θ",
    "max_rir": "the closed form θ* = K_P^(-1/2)",
    "pareto": "the closed form on the Pareto front",
    "erase": "erasure by half of the rows",
}
#: Why nobody was judged, by the record's word and the letter of the option.
_REASONS = {
    "switched off": "the attackers were switched off",
    "no targets": "no targets were given (--y-{task})",
    "one class": "all targets that attackers train on belong to one class or are equal",
    "few rows": "too few rows to hold some out",
    "no linear part": "the targets have no linear part in the raw features; check the order of the rows",
}
#: Colors of words; a light takes its own.
CHIPS = {
    "gets through": "fails", "hindered": "partly", "not known": "unknown", "stopped": "holds",
    "holds": "holds", "fails": "fails", "met": "holds", "not met": "fails",
}  # fmt: skip
#: A table of the card: of each heading a word, which has a color, and a text.
Table = list[dict[str, tuple[str, str]]]
#: What Definition 3.1 asks of which ratio.
_CLAUSES = {
    "(a) harmful κ rises: (i) > 1": "harmful_ratio",
    "(b) benign κ does not: (ii) ≤ 1": "benign_ratio",
    "(c) benign task still fitted": "",
    "Definition 3.1": "",
    "RIR = (i)/(ii)": "rir",
}
_HOLDS = {True: "holds", False: "fails", None: "not known"}
_MET = {True: "met", False: "not met", None: "not known"}


def label(name: str) -> str:
    """Return how an extractor is called."""
    return LABEL_OF.get(name, name)


def lights_of(found: Audit, extractor: str) -> pd.DataFrame:
    """Return the attacker to fear of each class, see `class_lights`."""
    table = found.attack.table
    return class_lights(table[table["extractor"] == extractor])


def headline(found: Audit, extractor: str) -> str:
    """Say who gets through, by the worst light, and what the benign task pays where that is much."""
    classes, of = lights_of(found, extractor), label(extractor)
    worst, count = worst_light(classes), len(classes)
    names = classes.loc[classes["light"] == worst, "group"]
    listed, s = ", ".join(names), "s" if len(names) == 1 else ""
    some = f"{len(names)} of {count} classes of attackers"
    said = {
        "gets through": f"Not safe: {some} get{s} through {of}: {listed}.",
        "hindered": f"Hindered, not stopped: {some} learn{s} the harmful task from {of} in part or slowly: "
        f"{listed}.",
        "not known": f"Not known whether {of} is safe: {listed or 'no attacker was scored'}.",
        "stopped": f"Stopped on these rows: none of the {count} classes of attackers learns the harmful task "
        f"from {of}.",
    }[worst]
    if extractor in found.attack.own_rows:
        said = (
            f"{of} was made from these rows: their labels correlate less with its features than chance "
            f"allows, so attackers look stopped here. Audit it on rows that it was not made from. {said}"
        )
    if found.attack.obstacle:
        said += f" Reason: {_REASONS[found.attack.obstacle].format(task='harmful')}."
    price, slow = _price(found, extractor), found.row(extractor, "compact")["benign_slowdown"]
    if slow > LOST_FACTOR or (price is not None and price["high"] < price["raw"]):
        said += f" The benign task pays: {_paid(found, extractor)}."
    return said + " No extractor was given, so a closed form is judged." * (
        extractor in ("pareto", "max_rir")
    )


def _price(found: Audit, extractor: str) -> Any:
    """Return the row of the better of the solved heads on the benign task, or None."""
    heads = found.price.table[found.price.table["extractor"] == extractor]
    return next(iter(heads.sort_values("score", ascending=False).to_dict("records")), None)


def _paid(found: Audit, extractor: str, details: bool = False) -> str:
    """Return the score of the benign task, and its steps as a multiple, each where it is known."""
    head, said = _price(found, extractor), list[str]()
    slow = found.row(extractor, "compact")["benign_slowdown"]
    if head is not None:
        show = _shows(head["score_name"])
        more = f" (95 % interval {_span(head, show)}, chance {show(head['chance'])})" * details
        said.append(f"{head['score_name']} {show(head['raw'])} → {show(head['score'])}{more}")
    elif details:
        said.append(f"accuracy not known, as {_REASONS[found.price.obstacle].format(task='benign')}")
    if math.isinf(slow):
        said.append("gradient descent never gets as far as on raw features")
    elif not math.isnan(slow):
        said.append(f"gradient descent takes {times(slow)} steps")
    return "; ".join(said)


def _steps(found: Audit, extractor: str) -> Iterator[str]:
    row = found.row(extractor, "compact")
    for task in ("benign", "harmful"):
        raw, own = (
            f"{n:,.0f}" if n < 1e6 else number(n) for n in (row[f"{task}_steps_raw"], row[f"{task}_steps"])
        )
        known = not math.isnan(row[f"{task}_steps_raw"])
        yield f"{task} {raw} → {own}" if known else f"{task} not known without targets"


def _shows(score_name: str) -> Any:
    return (lambda value: f"{100 * value:.1f} %") if score_name == "accuracy" else number


def _span(row: Any, show: Any) -> str:
    return f"{show(row['low']).removesuffix(' %')}–{show(row['high'])}"


def _scores(table: pd.DataFrame) -> pd.DataFrame:
    kind = table["score_name"].iloc[0]
    show = _shows(kind)
    columns = {
        "attacker": table["label"],
        kind: table["score"].map(show),
        "95 % interval": [_span(row, show) for row in table.to_dict("records")],
        "raw": table["raw"].map(show),
        "chance": table["chance"].map(show),
    }
    return pd.DataFrame(columns, index=table.index)


def attackers_text(found: Audit) -> pd.DataFrame:
    """Return all attackers as a reader sees them; steps are multiples of those on raw features."""
    table = found.attack.table
    marks = table["bound"].map({"at least": "> "}).fillna("")
    text = _scores(table).assign(**{"steps, × raw": marks + table["factor"].map(number)})
    text.insert(1, "light", table["light"])
    if table["extractor"].nunique() > 1:
        text.insert(0, "extractor", table["extractor"].map(label))
    return text


def _definition(found: Audit, extractor: str) -> Table:
    """Return Definition 3.1 by convention: of each clause a word and the numbers that it follows from."""
    heads, rows = {"compact κ": "compact", f"ridge κ, ε = {number(found.epsilon)}": "ridge"}, Table()
    for clause, name in _CLAUSES.items():
        cells = {"condition number κ": ("", clause)}
        for head, convention in heads.items():
            row, clauses = found.row(extractor, convention), found.clauses(extractor, convention)
            known = clauses.by_letter.get(clause[1], clauses.met)
            word = (_MET if clause == "Definition 3.1" else _HOLDS)[known] * (name != "rir")
            text = _with_interval(row, name) if name else ""
            if name == "rir" and not math.isnan(row["rir_limit"]):
                text += f", limit {number(row['rir_limit'])}"
            cells[head] = word, text
        rows.append(cells)
    return rows


def _with_interval(row: pd.Series, name: str) -> str:
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return number(value) if math.isnan(low) else f"{number(value)} ({number(low)}–{number(high)})"


def _intervals(found: Audit, extractor: str) -> str:
    """Say what the intervals are, or why there are none."""
    if not math.isnan(found.row(extractor, "compact")["rir_low"]):
        return (
            "In brackets: 95 % intervals for other rows of the same kind, estimated by a jackknife of ten "
            "random groups; they are too short where the largest or smallest eigenvalues are almost equal. A "
            "clause holds or fails where its whole interval does."
        )
    why, small = "a rank changes with the rows", min(found.benign, found.harmful, key=lambda of: of.rows)
    if not found.given:
        why = f"{label(extractor)} was made from them"
    elif small.dimension > WIDEST_GROUPS:
        why = f"of more than {WIDEST_GROUPS:,d} columns none is computed"
    elif small.rows * (GROUPS - 1) < 2 * GROUPS * small.dimension:
        few = f"{small.name} has {small.rows:,d} rows for {small.dimension:,d} columns"
        why = f"{few}, and an interval needs 2.2 per column"
    return f"A ratio without an interval in brackets is about these rows alone, as {why}."


def reading_lines(found: Audit) -> Iterator[str]:
    """Say what was read, and what large tasks are spared."""
    P, H = found.benign, found.harmful
    tasks = f"{P.rows:,d} rows of D_P from {P.source}, {H.rows:,d} of D_H from {H.source}"
    yield f"{tasks}; {P.dimension:,d} columns."
    yield from found.notes
    if found.attack.training and P.dimension > WIDE_FEATURES:
        yield (
            f"Beyond {WIDE_FEATURES} features, attackers have at most 1,500 rows; Adam, L-BFGS, the stacked "
            "layer and fine-tuning of θ take fewer steps; SGD and logistic regression are left out."
        )
    if found.attack.classes > MOST_OUTPUTS:
        yield (
            f"Adam, SGD, L-BFGS, the stacked layer and fine-tuning of θ learn {MOST_OUTPUTS} random mixtures "
            f"of the {found.attack.classes} classes: their accuracies are too low."
        )


def blocks(found: Audit) -> Iterator[str | Table]:
    """Yield the card's sentences and tables."""
    for name in found.judged:
        yield headline(found, name)
        yield from (note for note in found.notes if "missing entries" in note)
        classes = lights_of(found, name)
        if len(classes):
            text = _scores(classes).rename(columns={"attacker": "the one to fear"})
            yield [
                {"attackers": ("", of["group"]), "light": (of["light"], "")}
                | {head: ("", str(cell)) for head, cell in text.loc[i].items()}
                for i, of in classes.iterrows()
            ]
        yield f"Price for the benign task: {_paid(found, name, details=True)}."
        yield _definition(found, name)
        yield _intervals(found, name)
        yield (
            "Steps of gradient descent on the actual targets, to 1 % of the excess loss, on raw features → "
            f"on those of {label(name)}: {', '.join(_steps(found, name))}."
        )
    of = found.attack
    if of.judging:
        yield (
            f"Scores are those on {of.judging:,d} rows that no attacker saw, within 10 times the steps that "
            "the attacker needs on raw features, at the step and candidate that were best on "
            f"{of.choosing:,d} more rows; {of.training:,d} trained. Gets through: at least half of what raw "
            "features give above chance. Hindered: at least a tenth. Stopped: less. Not known: too few rows "
            "or steps to say so, or raw features give nothing. Chance is what a constant answer reaches on "
            "these rows; the 95 % intervals hold for all attackers together."
        )
    yield (
        "κ bounds how slowly gradient descent converges, and says nothing about other attackers. (i) and "
        "(ii) are κ with the extractor over κ without it, of the harmful and the benign task. Compact κ is "
        "over the spectrum above round-off; ridge κ adds ε to every eigenvalue, as weight decay does."
    )


def card_text(found: Audit) -> str:
    """Return the card for a terminal."""
    return blocks_text(blocks(found), "What was read:", reading_lines(found))


def blocks_text(blocks: Iterable[str | Table], heading: str, notes: Iterable[str]) -> str:
    """Return sentences and tables for a terminal, and a list of notes below."""
    lines = list[str]()
    for block in blocks:
        if isinstance(block, str):
            lines += [*textwrap.wrap(block, WIDTH), ""]
            continue
        cells = [{head: " ".join(filter(None, cell)) for head, cell in row.items()} for row in block]
        table = pd.DataFrame(cells)
        left = {head: f"{{:<{max(map(len, [head, *table[head]]))}}}".format for head in table}
        lines += [*table.to_string(index=False, formatters=left, justify="left").splitlines(), ""]
    bullets = {"initial_indent": "* ", "subsequent_indent": "  "}
    read = [line for said in notes for line in textwrap.wrap(said, WIDTH, **bullets)]  # type: ignore[arg-type]
    return "\n".join(line.rstrip() for line in [*lines, heading, *read])


_TEMPLATES = Environment(
    loader=PackageLoader("condnum.auditing", "."),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_TEMPLATES.filters |= {"formula_html": formula_html}


def card_html(found: Audit) -> str:
    """Return the card for a page."""
    worst = worst_light(pd.concat([lights_of(found, name) for name in found.judged]))
    chips = dict(CHIPS)
    if worst in ("gets through", "hindered"):  # no verdict may look better
        chips |= {"holds": "unknown", "met": "unknown"}
    return blocks_html(blocks(found), chips)


def blocks_html(blocks: Iterable[str | Table], chips: Mapping[str, str] = CHIPS) -> str:
    """Return sentences and tables for a page; words of a table have colors."""
    return _TEMPLATES.get_template("card.html.j2").render(blocks=[*blocks], chips=chips)


def attackers_figure(found: Audit) -> Any:
    """Draw what every attacker reaches on every extractor, beside raw features and chance."""
    colors = dict(zip((*LIGHTS, "on raw features"), (ORANGE, "#E69F00", GREY, GREEN, NEUTRAL), strict=True))
    symbols = dict(zip(colors, ("circle", "diamond", "circle-open", "square", "line-ns-open"), strict=True))
    table = found.attack.table.assign(
        more=lambda of: of["high"] - of["score"], less=lambda of: of["score"] - of["low"]
    )
    raw = table.assign(score=table["raw"], light="on raw features", more=math.nan, less=math.nan)
    table = pd.concat([raw, table]).replace({"extractor": LABEL_OF})
    kind, labels = table["score_name"].iloc[0], [*dict.fromkeys(table["label"])]
    panels = table["extractor"].nunique()
    figure = express(
        "scatter", table, x="score", y="label", color="light", symbol="light",
        facet_row="extractor" if panels > 1 else None,
        error_x="more", error_x_minus="less", color_discrete_map=colors, symbol_map=symbols,
        category_orders={"label": labels, "light": [*colors]},
    ).update_traces(marker_size=9, hovertemplate="%{y}: %{x:.3f}")  # fmt: skip
    figure.add_vline(x=table["chance"].iloc[0], line=DOTTED)
    low = min(-0.02, float(np.nanmin(table["score"].clip(-0.5))))
    figure.update_xaxes(range=[low, 1.02], tickformat=".0%" if kind == "accuracy" else "", dtick=0.25)
    figure.update_xaxes(title_text=kind, row=1)
    figure.update_yaxes(title_text="", dtick=1, showgrid=True, automargin=True, tickfont={"size": 12})
    note = "Bars: 95 % intervals; strokes: the best of the class on raw features; dotted: chance"
    height = 190 + panels * (30 + 22 * len(labels))
    finish(figure, "What every attacker reaches", note, height=height, width=60, legend="")
    place = {"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"}
    return figure.update_layout(legend={**place, "title_text": ""}, margin_b=110)
