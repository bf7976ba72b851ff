"""What attackers reach on θ₀, on every θ_I, on θ₀ once more, and on the net from scratch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.deep.attack import ATTACKERS, HORIZONS, Attacker, Target, attack, from_scratch
from condnum.deep.measure import sgrc
from condnum.deep.net import read_notes
from condnum.deep.samples import evaluation_transform
from condnum.errors import DataNotFoundError, InvalidInputError, check_integer
from condnum.experiments import deep
from condnum.experiments.deep import INITIAL, Choice, images_of, known_methods, net_of, style_of
from condnum.experiments.frame import Arrays, Cell, Outcome
from condnum.files import sha256_file
from condnum.page.look import DOTTED
from condnum.page.style import MethodStyle, finish, panels
from condnum.page.tables import label_text, number

#: θ₀ once more with other heads and batches (A against A), and the same net with weights drawn anew.
AGAIN, SCRATCH = "again", "scratch"
#: What the notebook of the nets asks for beside this one's parameters.
_FIXED: Mapping[str, Any] = {
    "preset": "", "pretrain_epochs": 0, "finetune_benign": 0, "groups": 20, "group_size": 100,
}  # fmt: skip
#: A run of seconds.
_QUICK = {"attackers": "head-sgd,ridge,stage-adamw", "passes": 5, "trials": 2, "test_images": 60}


def cells(
    *, models: str, attackers: Any, passes: int, trials: int, test_images: int, **parameters: Any
) -> list[Cell]:
    """List what makes the nets, then the attacks on each, net by net."""
    given = {"attackers": attackers, "passes": passes, "trials": trials, "test_images": test_images}
    given |= {} if parameters["full"] else _QUICK
    words = given["attackers"].split(",") if isinstance(given["attackers"], str) else given["attackers"]
    who = [Attacker.named(word.strip()) for word in words if word.strip()]
    who = list(dict.fromkeys(who)) or [Attacker.named(name) for name in ATTACKERS]
    budget = {name: check_integer(name, given[name], 1) for name in ("passes", "trials")}
    budget["test_images"] = check_integer("test_images", given["test_images"], 10)
    if idle := [f"--{name}" for name in ("weights", "steps") if models and parameters[name]]:
        raise InvalidInputError(f"{', '.join(idle)} has no effect on the nets of --models; leave it out.")
    choice = _choice(models=models, **parameters)
    made = _given(choice, models) if models else choice.cells()
    attacks = []
    for theta in made:
        where = {
            name: theta[name] for name in ("backbone", "seed", "images", "side", "crop", "device", "workers")
        }
        where |= {"budget": budget, "beside": "", "after": theta}
        for net in [theta["method"], *([AGAIN, SCRATCH] if theta["method"] == INITIAL else [])]:
            attacks += [
                {"method": net, "attacker": one.name, **where}
                for one in who
                if net != AGAIN or not one.solved  # of which nothing is drawn
            ]
    return [*made, *attacks]


def checksum(*, models: str, **parameters: Any) -> str:
    """Return the SHA-256 of the images, and of a file of weights."""
    own = {name: of for name, of in parameters.items() if name in Choice.__dataclass_fields__}
    return deep.checksum(**vars_of(models=models, **own))


def threads(*, models: str = "", **parameters: Any) -> int | None:
    """Return the threads of a cell, as for the nets."""
    own = {name: of for name, of in parameters.items() if name in Choice.__dataclass_fields__}
    return deep.threads(**vars_of(models=models, **own))


def vars_of(*, models: str, methods: Any, **parameters: Any) -> dict[str, Any]:
    """Return the parameters of `Choice`: ours if no method is named, or all of the folder of models."""
    every = ",".join(known_methods()) if models else "ours"
    return {**_FIXED, "methods": methods or every, **parameters}


def _choice(**parameters: Any) -> Choice:
    return Choice(**vars_of(**parameters))


def _given(choice: Choice, models: str) -> list[Cell]:
    """List the nets of a folder, θ₀ first."""
    folder, found = Path(models).expanduser(), {}
    order = {name: place for place, name in enumerate(known_methods())}
    for path in sorted(folder.glob("**/theta_*.safetensors")):
        notes = read_notes(path)
        backbone, seed = notes.get("backbone", ""), int(notes.get("seed", 0))
        method = INITIAL if path.name == "theta_0.safetensors" else notes.get("method", "theta_i")
        wanted = method in (INITIAL, *choice.names) or method not in order
        if wanted and seed < choice.seeds and (not choice.asked or backbone in choice.asked):
            found[backbone, seed, method] = path
    pairs = {key[:2] for key in found if key[2] != INITIAL and (*key[:2], INITIAL) in found}
    if not pairs:
        raise DataNotFoundError(
            f"{folder} has no theta_0.safetensors with a theta_I.safetensors of the same backbone and seed "
            "that is requested, as `condnum run deep --out DIR` and condnum.deep.save_backbone write them."
        )
    starts, methods = dict[tuple[str, int], Cell](), list[Cell]()
    places = {key: (key[2] != INITIAL, key[:2], order.get(key[2], len(order))) for key in found}
    for key in sorted((key for key in found if key[:2] in pairs), key=lambda key: places[key]):
        training = {"file": str(found[key]), "checksum": sha256_file(found[key])}
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
    *, method: str, seed: int, attacker: str, budget: dict[str, int], after: Outcome, beside: Path, **how: Any
) -> Outcome:
    """Attack a net."""
    digest = hashlib.sha256()
    for name, of in sorted(after[1].items()):
        digest.update(name.encode() + np.ascontiguousarray(of).tobytes())
    settings = json.dumps(
        {"test_images": budget["test_images"], "folder": str(beside.parent / "activations"), **how}
    )
    target = _target(_Net(digest.hexdigest(), after[1]), seed if method == SCRATCH else None, settings)
    limits = {"passes": budget["passes"], "trials": budget["trials"]}
    found = attack(target, attacker, seed=seed, again=method == AGAIN, **limits)
    row = {name: value for name, value in vars(found).items() if np.ndim(value) == 0}
    row |= {"final": found.final, **{f"after_{passes}": found.after(passes) for passes in HORIZONS}}
    return row, {"passes": found.passes, "accuracy": found.accuracy}


@dataclass(frozen=True)
class _Net:
    """A net as arrays, told from others by its checksum."""

    checksum: str
    arrays: Arrays = field(compare=False, repr=False)


@lru_cache(1)
def _target(net: _Net, scratch: int | None, settings: str) -> Target:
    """Return a net, or the same from scratch by a seed, with the images of an attack on it; one is kept."""
    how, theta = json.loads(settings), net_of(net.arrays)
    data = images_of(**how["images"])
    transform = evaluation_transform(
        theta, input_size=how["side"], **({"crop_pct": 1.0} if how["crop"] else {})
    )
    if scratch is not None:
        theta = from_scratch(theta, data["harmful"], transform, seed=scratch)
    test = {}
    for task in ("harmful", "benign"):
        images = data[f"{task}_test"]
        test[task] = images.limit(max(1, how["test_images"] // len(images.classes)))
    return Target(
        theta.to(how["device"]), data["harmful"], test["harmful"], transform=transform, benign=data["benign"],
        benign_test=test["benign"], folder=Path(how["folder"]), workers=how["workers"],
    )  # fmt: skip


# The table, the sentence and the figure.


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per defense and attacker: accuracies in percent, and SGRC beside A against A."""
    if "attacker" not in rows:
        return pd.DataFrame()
    attacks, nets = rows[rows["attacker"].notna()], rows[rows["attacker"].isna()]
    attacks = attacks.assign(chance=100 * attacks["chance"])
    where, found = ["backbone", "attacker", "seed"], []
    rir = nets.groupby(["backbone", "method"])["compact_rir"].mean()
    for net in (INITIAL, AGAIN, SCRATCH):
        own = attacks[attacks["method"] == net].set_index(where)["final"]
        attacks = attacks.join(own.rename(f"of_{net}"), on=where)
    attacks["sgrc"] = sgrc(attacks["of_initial"], attacks["final"])
    attacks["sgrc_again"] = np.abs(sgrc(attacks["of_initial"], attacks["of_again"]))
    order = list(dict.fromkeys(attacks["attacker"]))
    for (backbone, method), group in attacks.groupby(["backbone", "method"], sort=False):
        for attacker in order if method not in (INITIAL, AGAIN, SCRATCH) else ():
            own = group[group["attacker"] == attacker]
            line = {"pair": nets["pair"].iloc[0], "backbone": backbone, "method": method}
            line |= {"rir": rir.get((backbone, method), math.nan), "label": Attacker.named(attacker).label}
            for passes in HORIZONS:
                line[f"after_{passes}"] = 100 * own[f"after_{passes}"].mean()
            line |= {"final_mean": 100 * own["final"].mean(), "final_std": 100 * own["final"].std()}
            for net in ("initial", "again", "scratch"):
                line[f"final_{net}"] = 100 * own[f"of_{net}"].mean()
            line |= {"sgrc_mean": own["sgrc"].mean(), "sgrc_std": own["sgrc"].std()}
            line |= {
                "sgrc_again": own["sgrc_again"].max(),
                "benign_after": 100 * own["benign_accuracy"].mean(),
            }
            found.append(
                line | {"chance": own["chance"].mean(), "at_edge": int(own["at_edge"].sum()), "of": len(own)}
            )
    made = pd.DataFrame(found)
    unseen = [name for name in made if name.startswith("after_") and made[name].isna().all()]
    return made.drop(columns=unseen)


def sentence(table: pd.DataFrame) -> str:
    """Return who gets most out of each net, and who is held back beyond A against A."""
    if table.empty:
        return "No immunized net and its θ₀ were attacked."
    said = []
    for (pair, backbone, method), own in table.groupby(["pair", "backbone", "method"], sort=False):
        most = own.loc[own["final_mean"].idxmax()]
        noise = own["sgrc_again"].max()  # what is solved has no A against A of its own
        held = own[own["sgrc_mean"] > own["sgrc_again"].fillna(noise)]
        start, words = most["label"], f" (RIR_θ0 {number(most['rir'])})" if math.isfinite(most["rir"]) else ""
        said.append(
            f"On {pair}, {backbone} by {label_text(method)}{words}: {start[0].lower()}{start[1:]} reaches "
            f"{most['final_mean']:.1f} % (θ₀: {most['final_initial']:.1f} %, from scratch "
            f"{most['final_scratch']:.1f} %, chance {most['chance']:.1f} %); {len(held)} of {len(own)} "
            "attackers reach less than on θ₀ by more than A against A differs."
        )
    return " ".join(said)


def figure(run: Any) -> Any:
    """Draw what every attacker reaches on every net, a panel per backbone; bars span the seeds."""
    attacks = run.rows[run.rows["attacker"].notna()] if "attacker" in run.rows else run.rows[:0]
    names = list(dict.fromkeys(attacks["backbone"]))
    labels = {
        name: Attacker.named(name).label.replace("D_P", "D<sub>P</sub>") for name in attacks["attacker"]
    }
    drawn = panels(cols=max(1, len(names)), subplot_titles=names, horizontal_spacing=0.07, shared_yaxes=True)
    styles = {
        AGAIN: MethodStyle("θ<sub>0</sub> again (A against A)", "#AAAAAA", "dash"),
        SCRATCH: MethodStyle("from scratch", "#444444", "dot"),
    }
    symbols = {INITIAL: "circle-open", AGAIN: "circle-open", SCRATCH: "x-thin-open"}
    for (backbone, method), own in attacks.groupby(["backbone", "method"], sort=False):
        style, values = styles.get(method) or style_of(str(method)), own.assign(final=100 * own["final"])
        values = values.groupby("attacker", sort=False)["final"]
        mean = values.mean()
        drawn.add_scatter(
            x=mean, y=[labels[name] for name in mean.index], mode="markers", name=style.label,
            legendgroup=method, showlegend=backbone == names[0], row=1, col=names.index(backbone) + 1,
            marker={
                "color": style.color, "size": 12 if method not in (AGAIN, SCRATCH) else 9,
                "symbol": symbols.get(method, "circle"),
            },
            error_x={
                "type": "data", "symmetric": False, "array": values.max() - mean,
                "arrayminus": mean - values.min(),
                "thickness": 1,
            },
            hovertemplate="%{y}: %{x:.1f} %",
        )  # fmt: skip
    for column, name in enumerate(names, 1):
        chance = 100 * float(attacks.loc[attacks["backbone"] == name, "chance"].mean())
        drawn.add_vline(x=chance, line=DOTTED, row=1, col=column)
    drawn.update_xaxes(title_text="test accuracy on D<sub>H</sub> (%)")
    drawn.update_yaxes(autorange="reversed")
    note = f"{run.rows['pair'].iloc[0]}. Mean over seeds; bars: least to largest; dotted: chance"
    return finish(drawn, "What each attacker reaches", note, height=220 + 34 * len(labels))
