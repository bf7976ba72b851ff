"""What an attacker really meets: deep attacks on θ₀, on every θ_I, and on the net from scratch."""

import itertools
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.data.images import ImageData, open_images
from condnum.deep.attacks.attack import DeepAttackRun, attack
from condnum.deep.attacks.attackers import ATTACKERS, DeepAttacker, DeepBudget
from condnum.deep.attacks.report import (
    AGAIN,
    SCRATCH,
    THETA_0,
    AttackKey,
    DeepAttackReport,
    cheapest_attack,
)
from condnum.deep.attacks.target import Pixels, Target, TrunkOutputs, from_scratch, load_pixels
from condnum.deep.transforms import evaluation_transform, training_transform
from condnum.deep.weights import read_metadata
from condnum.errors import DataNotFoundError, InvalidInputError, check_integer
from condnum.experiments import deep
from condnum.experiments.deep_measures import LIMIT_SEED, commonest, net_of, tasks
from condnum.experiments.deep_recipes import INITIAL, Choice, known_methods
from condnum.experiments.frame import Arrays, Cell, Outcome, Run
from condnum.files import sha256_file
from condnum.numbers import num
from condnum.page.style import DOTTED, empty, express, finish, log_axis, method_style
from condnum.page.tables import label_text, number

#: Fraction of the way from chance to the best attacker's accuracy on θ₀: the goal of table and sentence.
GOAL = 0.8
#: What is compared: before, after, and the same net from scratch.
_NETS = ("theta_0", "theta_i", "scratch")
#: A run of seconds.
_QUICK = {"attackers": "head-sgd,ridge", "shots": "0", "steps": 8, "trials": 2, "test_images": 60}


def cells(
    *,
    models: str,
    attackers: Any,
    shots: Any,
    steps: int,
    trials: int,
    repeats: int,
    batch_size: int,
    test_images: int,
    **parameters: Any,
) -> list[Cell]:
    """List what makes the nets, then the attacks on each, net by net."""
    given = {"attackers": attackers, "shots": shots, "steps": steps, "trials": trials}
    given |= {"test_images": test_images} | ({} if parameters["full"] else _QUICK)
    who, counts = _attackers(given["attackers"]), _shots(given["shots"])
    budget = DeepBudget(given["steps"], given["trials"], repeats, batch_size)
    check_integer("test_images", given["test_images"], 10)
    choice = _choice(models=models, **parameters)
    made = _given(choice, models, who) if models else choice.cells()
    attacks = []
    for theta in made:
        where = {name: theta[name] for name in ("backbone", "seed", *choice.common)}
        where |= {"fresh": any(one.fresh for one in who), "benign": any(one.benign for one in who)}
        where |= {"budget": asdict(budget), "test_images": given["test_images"], "after": theta}
        for net in [theta["method"], *([AGAIN, SCRATCH] if theta["method"] == INITIAL else [])]:
            attacks += [
                {"method": net, "attacker": one.name, "shots": count, **where}
                for one, count in itertools.product(who, counts)
                if net != AGAIN or not one.closed_form  # of which nothing is drawn
            ]
    return [*made, *attacks]


def checksum(*, models: str, **parameters: Any) -> str:
    """Return the SHA-256 of the images, and of a file of weights."""
    own = {name: of for name, of in parameters.items() if name in Choice.__dataclass_fields__}
    return deep.checksum_of(_choice(models=models, **own))


def _choice(*, models: str, methods: Any, **parameters: Any) -> Choice:
    """Return what the parameters choose: ours if no method is named, or all of the folder of models."""
    every = ",".join(known_methods()) if models else "ours"
    return Choice(methods=methods or every, **parameters)


def _attackers(given: Any) -> list[DeepAttacker]:
    """Read attackers, by name and with commas; empty for the panel."""
    words = given.split(",") if isinstance(given, str) else given
    named = [DeepAttacker.named(word.strip()) for word in words if word.strip()]
    return list(dict.fromkeys(named)) or [DeepAttacker.named(name) for name in ATTACKERS]


def _shots(given: Any) -> list[int]:
    """Read examples per class: whole numbers, 0 for all."""
    words = [word.strip() for word in str(given).split(",") if word.strip()]
    if not words or not all(word.isdecimal() and int(word) != 1 for word in words):
        raise InvalidInputError(
            f"shots are examples per class such as 8,128,0: 0 for all, else at least 2, got {given!r}."
        )
    return list(dict.fromkeys(map(int, words)))


def _given(choice: Choice, models: str, who: list[DeepAttacker]) -> list[Cell]:
    """List the nets of a folder, θ₀ first; of a single pair the method may be unnamed."""
    folder, found = Path(models).expanduser(), {}
    order = {name: place for place, name in enumerate(known_methods())}
    for path in sorted(folder.glob("**/theta_*.safetensors")):
        notes = read_metadata(path)
        backbone, seed = notes.get("backbone", ""), int(notes.get("seed", 0))
        method = INITIAL if path.name == "theta_0.safetensors" else notes.get("method", "theta_i")
        wanted = method in (INITIAL, *choice.methods) or method not in order
        if wanted and seed < choice.seeds and (not choice.backbone or backbone in choice.backbone):
            found[backbone, seed, method] = path
    pairs = {key[:2] for key in found if key[2] != INITIAL and (*key[:2], INITIAL) in found}
    if not pairs:
        raise DataNotFoundError(
            f"{folder} has no theta_0.safetensors with a theta_I.safetensors of the same backbone and "
            "seed that is requested, as `condnum run deep --out "
            "DIR` and condnum.deep.save_backbone write them."
        )
    data, fresh = choice.tasks.checksum, [one.name for one in who if one.fresh]
    starts, methods = dict[tuple[str, int], Cell](), list[Cell]()
    places = {key: (key[2] != INITIAL, key[:2], order.get(key[2], len(order))) for key in found}
    for key in sorted((key for key in found if key[:2] in pairs), key=lambda key: places[key]):
        path = found[key]
        if fresh and read_metadata(path).get("data") != data:
            raise InvalidInputError(
                f"{path} does not record that it was trained on the images of this run, so no image "
                f"is known to be fresh; leave out {', '.join(fresh)}, or give "
                "the data and limit of the run that trained it."
            )
        training = {"file": str(path), "checksum": sha256_file(path)}
        cell = dict(zip(("backbone", "seed", "method"), key, strict=True)) | choice.common
        cell["training"] = training
        if key[2] == INITIAL:
            starts[key[:2]] = cell
        else:
            methods.append(cell | {"after": starts[key[:2]]})
    return [*starts.values(), *methods]


def compute(**cell: Any) -> Outcome:
    """Make and measure a net, or attack one."""
    return _attacked(**cell) if "attacker" in cell else deep.compute(**cell)


def _attacked(
    *,
    method: str,
    seed: int,
    attacker: str,
    shots: int,
    budget: dict[str, int],
    after: Outcome,
    **how: Any,
) -> Outcome:
    """Attack a net."""
    net = _Net(after[0]["checksum"], after[1])
    chosen = {name: how[name] for name in ("images", "transform", "test_images", "fresh", "benign")}
    settings = json.dumps(chosen | {"device": how["device"], "workers": how["workers"]})
    target = _target(net, seed if method == SCRATCH else None, settings)
    again, known = method == AGAIN, DeepAttacker.named(attacker)
    found = attack(target, known, shots=shots, budget=DeepBudget(**budget), seed=seed, again=again)
    row = {name: value for name, value in vars(found).items() if np.ndim(value) == 0}
    row["goal_chance"] = _chance(how["images"], how["test_images"])
    return row, {"steps": found.steps, "accuracy": found.accuracy}


def _chance(images: dict[str, Any], most: int) -> float:
    """Return the fraction of the commonest class of D_H's test images."""
    test = tasks(**images).harmful_test
    return commonest(test.limit(max(1, most // len(test.classes))).labels)


@dataclass(frozen=True)
class _Net:
    """A net as arrays, told from others by its checksum."""

    checksum: str
    arrays: Arrays = field(compare=False, repr=False)


@lru_cache(1)
def _target(net: _Net, scratch: int | None, settings: str) -> Target:
    """Return a net, or the same from scratch by a seed, with the images of an attack on it; one is kept."""
    how, theta = json.loads(settings), net_of(net.arrays)
    data, transform = tasks(**how["images"]), training_transform(theta, **how["transform"]).unaugmented
    transform = transform or evaluation_transform(theta)

    def pixels(images: ImageData, most: int | None = None) -> Pixels:
        return _pixels(images, transform, most, how["workers"])

    train = pixels(data.harmful)
    fresh = pixels(unused(how["images"]["harmful"], data.harmful)) if how["fresh"] else None
    if scratch is not None:
        theta = from_scratch(theta, scratch, train.images)
    test = [pixels(images, how["test_images"]) for images in (data.harmful_test, data.benign_test)]
    benign = {"benign_test": test[1]} | ({"benign_train": pixels(data.benign)} if how["benign"] else {})
    return Target(theta, train, test[0], fresh=fresh, **benign, device=how["device"], kept=_kept())


@cache
def _kept() -> TrunkOutputs:
    """Return the place of the output of frozen trunks, which the nets of a run share."""
    return {}


@lru_cache(8)
def _pixels(images: ImageData, transform: Any, most: int | None, workers: int) -> Pixels:
    """Return images as a net sees them."""
    return load_pixels(images, transform, most=most, workers=workers)


@cache
def unused(name: str, taken: ImageData) -> ImageData:
    """Return images of D_H on which no θ_I was trained, at most as many per class."""
    whole = open_images(name, "train")
    rest = np.flatnonzero(~np.isin(whole.positions, taken.positions))
    return whole.take(rest).limit(max(taken.counts), seed=LIMIT_SEED)


# The table, the sentence and the figure.


def report(rows: pd.DataFrame, arrays: Iterable[Arrays]) -> DeepAttackReport:
    """Put the attacks together, of every backbone and seed of which θ₀ was attacked."""
    runs, last = {}, rows.iloc[-1]
    for row, found in zip(rows.to_dict("records"), arrays, strict=True):
        if "accuracy" in found:
            net = THETA_0 if row["method"] == INITIAL else row["method"]
            place = AttackKey(row["backbone"], net, row["attacker"], int(row["shots"]), row["seed"])
            names = ("chosen", "at_edge", "layer", "benign_accuracy", "seconds")
            known: dict[str, Any] = {name: row[name] for name in names} | found
            runs[place] = DeepAttackRun(pd.DataFrame(), rows=int(row["rows"]), **known)
            last = row
    starts = {place for place in runs if place.net == THETA_0}
    kept = {place: of for place, of in runs.items() if place._replace(net=THETA_0) in starts}
    return DeepAttackReport(kept, DeepBudget(**last["budget"]), last["goal_chance"])


def table(rows: pd.DataFrame, arrays: Iterable[Arrays]) -> pd.DataFrame:
    """Return a row per net, examples per class and attacker, the cheapest attack that succeeds first."""
    if "attacker" not in rows:
        return pd.DataFrame()
    factors, nets = report(rows, arrays).factors([GOAL]), rows[rows["attacker"].isna()]
    if factors.empty:
        return factors
    names = ["backbone", "method"]
    rir = nets.groupby(names)["compact_rir"].mean().rename("rir").reset_index()
    factors = factors.merge(rir, on=names, how="left").assign(pair=nets["pair"].iloc[0])
    for net in _NETS:
        factors[f"final_{net}"] *= 100
        factors.loc[factors[f"reached_{net}"] < factors["attacks"], f"needs_{net}"] = math.nan
    factors["sgrc"] = 100 * (1 - factors["final_theta_i"] / factors["final_theta_0"])
    columns = ["pair", *names, "rir", "label", "shots", "goal", "examples_theta_i"]
    columns += ["reached_theta_i", "attacks", *(f"needs_{net}" for net in _NETS)]
    columns += ["factor", "noise", "effect", "protection", "final_theta_0", "final_theta_i", "sgrc"]
    return factors[columns].rename(columns={"attacks": "of"})


def sentence(table: pd.DataFrame) -> str:
    """Return the cheapest attack that succeeds on each net, by those with the most examples."""
    if table.empty:
        return "No immunized net and its θ₀ were attacked."
    most, said = 0 if 0 in set(table["shots"]) else table["shots"].max(), []
    nets = table[table["shots"] == most].groupby(["pair", "backbone", "method"], sort=False)
    for (pair, backbone, method), rows in nets:
        cheapest = cheapest_attack(rows)
        rir = f" (RIR_θ0 {number(rows['rir'].iloc[0])})" if math.isfinite(rows["rir"].iloc[0]) else ""
        said.append(
            f"On {pair}, {backbone} by {label_text(method)}{rir}: {cheapest[0].lower()}{cheapest[1:]}"
        )
    return " ".join(said)


def figure(run: Run) -> Any:
    """Draw each attacker's factor of steps beside its range of A against A, and its protection score.

    Attackers that are solved have no factor. A triangle is a lower bound: the attack on θ_I misses the goal
    within its budget.
    """
    heading = "How much the defense slows each attacker"
    factors = report(run.rows, run.arrays).factors([GOAL])
    table = factors[factors["examples_budget"].notna()] if len(factors) else factors
    if table.empty:
        note = "No attacker has a curve of steps, as those in closed form take none; see the table"
        axes = empty().update_xaxes(visible=False).update_yaxes(visible=False)
        return finish(axes, heading, note, height=140)
    net = table["backbone"] + ": " + table["method"].map(lambda name: method_style(name).label)
    table = table.assign(
        label=table["label"].str.replace("D_P", "D<sub>P</sub>"),
        examples=table["shots"].map(_rows),
        bound=np.where(table["reached_theta_i"] < table["attacks"], "at least", "measured"),
        steps=[
            f"{num(a)} on θ₀, {num(b)} on θ<sub>I</sub>, {num(c)} from scratch"
            for a, b, c in table[["needs_theta_0", "needs_theta_i", "needs_scratch"]].to_numpy()
        ],
    )
    kinds = {"factor": "times as many steps", "protection": "protection score"}
    points = pd.concat(
        table.assign(
            panel=net + "<br>" + words, value=table[name], minus=table[name] - table[f"{name}_low"],
            plus=(table[f"{name}_high"] - table[name]).replace(np.inf, 0),
        ) for name, words in kinds.items()
    )  # fmt: skip
    labels, nets = list(dict.fromkeys(table["label"])), list(dict.fromkeys(net))
    shots = sorted(table["shots"].unique(), key=lambda count: (count == 0, count))
    order = {
        "panel": [f"{name}<br>{words}" for name in nets for words in kinds.values()],
        "label": labels,
        "examples": [_rows(count) for count in shots],
    }
    inner = (34 * len(labels) + 115) * len(nets)
    figure = express(
        "scatter", points, x="value", y="label", color="examples", symbol="bound", error_x="plus",
        error_x_minus="minus", facet_col="panel", facet_col_wrap=2, hover_data=["steps"],
        category_orders=order, symbol_map={"measured": "circle", "at least": "triangle-right"},
        facet_row_spacing=115 / inner if len(nets) > 1 else 0,
    ).update_traces(marker_size=9, orientation="h")  # fmt: skip
    for row, name in enumerate(reversed(nets), start=1):  # plotly express counts rows from below
        own = table[net == name]
        figure.add_bar(
            y=own["label"], base=1 / own["noise"], x=own["noise"] - 1 / own["noise"], orientation="h",
            width=0.9, marker_color="#DDDDDD", name="A against A", showlegend=row == 1, legendgroup="noise",
            hoverinfo="skip", zorder=-1, row=row, col=1,
        )  # fmt: skip
    figure.update_xaxes(matches=None, title_text="", showticklabels=True)
    figure.update_yaxes(title_text="", tickvals=labels, ticktext=labels)
    for row, name in enumerate(reversed(nets), start=1):
        own = table[net == name]
        ends = np.r_[own["factor_low"], own["factor_high"], own["noise"], 1 / own["noise"]]
        figure.update_xaxes(**log_axis("", ends), row=row, col=1)
    figure.update_xaxes(range=[-0.5, 1.5], tickvals=[0, 0.5, 1], col=2)
    for value, column in ((1, 1), (0, 2), (1, 2)):
        figure.add_vline(x=value, line=DOTTED, row="all", col=column)
    goal = f"Steps to {100 * GOAL:g} % of the way from chance to the best attacker's accuracy on θ₀"
    bars = "bars: 95 % t-intervals; gray: A against A; ▶ at least so many; no mark: the goal is missed on θ₀"
    note = f"{run.rows['pair'].iloc[0]}<br>{goal}<br>{bars}"
    finish(figure, heading, note, height=240 + inner, legend="")
    return figure.update_layout(legend_title_text="attacker's examples", scattermode="group")


def _rows(shots: int) -> str:
    """Return examples per class in words."""
    return f"{shots} examples per class" if shots else "all examples"
