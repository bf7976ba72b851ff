r"""Grab the vectors: one θ, two tasks, two dimensions, every axis to be dragged.

An ellipse is `(a, b, degrees)`: its half axes and the direction of the first. Of a task it is the spread of
the data, :math:`K = a^2qq^\top + b^2pp^\top`; of θ it is the image of the circle, with the singular values
a and b. V only turns the features, so :math:`\theta = U\Sigma U^\top` here, and data, θ and H lie in one
plane.

`grab.js` draws and computes by itself, in Jupyter, on a page of its own (`standalone`) and on the site.
`grab` is what its numbers are tested against.
"""

import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from condnum.errors import InvalidInputError, UnknownNameError, require
from condnum.files import asset, write_text
from condnum.lessons.condition_number import Floats
from condnum.lessons.figure_view import on_a_page
from condnum.probing.recurrences import rate_steps
from condnum.theory.alignment import Alignment, alignment
from condnum.theory.ceiling import rir_ceiling
from condnum.theory.immunization import Immunization, relative_immunization_ratio

traitlets = require("traitlets", "notebooks")
AnyWidget: Any = require("anywidget", "notebooks").AnyWidget

Ellipse = tuple[float, float, float]

#: Half axes that can be drawn, and grabbed: data up to κ = 100.
SHORTEST, LONGEST = 0.1, 1.0
#: Share of the initial loss at which the ball has arrived.
LEFT = 1e-3
#: Draws into each `<div class="condnum-grab" data-state="{…}">`.
_SCRIPT = asset("lessons/grab.js")

#: Misalignment that counts as none: the round-off of angles in degrees.
EXACT = 1e-12

#: The state at the start: θ stands at 45° to both tasks.
START: dict[str, Ellipse] = {"theta": (1, 0.3, 65), "benign": (1, 0.2, 20), "harmful": (0.5, 0.9, 20)}


@dataclass(frozen=True)
class GrabbedTask:
    """One task as a probe sees it through θ."""

    alignment: Alignment  # in the order of θ's axes as drawn, also where they are equal

    @property
    def exact(self) -> bool:
        """Whether Eq. 10 is the spectrum of H, for θ's axes as drawn."""
        return self.alignment.misalignment <= EXACT

    @property
    def steps(self) -> int:
        """Steps of exact line search to `LEFT` of the loss, from the slowest start."""
        kappa = self.alignment.true_condition
        return int(rate_steps((kappa - 1) / (kappa + 1), LEFT))


@dataclass(frozen=True)
class Grabbed:
    """What the explorer says about one θ and two tasks."""

    benign: GrabbedTask
    harmful: GrabbedTask
    immunization: Immunization  # (i), (ii), RIR and the verdict of Definition 3.1
    ceiling: float  # the largest RIR of any invertible θ


def matrix(ellipse: Ellipse) -> Floats:
    """Return `a qqᵀ + b ppᵀ`, the symmetric matrix that takes the circle to the ellipse.

    Examples:
        >>> matrix((1.0, 0.5, 90.0)).round(12).tolist()
        [[0.5, 0.0], [0.0, 1.0]]
    """
    Q = _axes(ellipse)
    return np.asarray((Q * ellipse[:2]) @ Q.T)


def grab(theta: Ellipse, benign: Ellipse, harmful: Ellipse) -> Grabbed:
    """Measure alignment and immunization of θ and two tasks that are given as ellipses.

    Examples:
        Two aligned tasks, of κ = 100 and 2, and θ = K_P^{-1/2}: the paper says that none immunizes.

        >>> found = grab((0.1, 1, 0), (1, 0.1, 0), (1, 0.5**0.5, 0))
        >>> found.immunization.success, round(found.immunization.rir, 6), round(found.ceiling, 6)
        (True, 2500.0, 2500.0)
        >>> found.benign.exact, found.benign.steps, found.harmful.steps
        (True, 1, 87)
    """
    checked = {"theta": theta, "benign": benign, "harmful": harmful}
    T, root_P, root_H = (matrix(check_ellipse(name, value)) for name, value in checked.items())
    K_P, K_H = root_P @ root_P, root_H @ root_H
    # In θ's own axes, so that a circle keeps those that are drawn; what is measured depends on no basis.
    U, sigma = _axes(theta), np.diag(theta[:2])
    P, H = (GrabbedTask(alignment(sigma, U.T @ K @ U)) for K in (K_P, K_H))
    return Grabbed(P, H, relative_immunization_ratio(T, K_P, K_H), rir_ceiling(K_P, K_H).value)


def check_ellipse(name: str, value: Any) -> Ellipse:
    """Return two half axes and an angle, or say what is wrong with them."""
    try:
        a, b, degrees = (float(part) for part in value)
    except (TypeError, ValueError):
        a = b = degrees = np.nan
    if not (SHORTEST <= a <= LONGEST and SHORTEST <= b <= LONGEST and np.isfinite(degrees)):
        raise InvalidInputError(
            f"{name} must be two half axes from {SHORTEST:g} to {LONGEST:g} and an angle in degrees, such as "
            f"(1, 0.5, 30), got {value!r}."
        )
    return a, b, degrees


def fragment(state: Mapping[str, Ellipse], *, address: bool = False) -> str:
    """Return the explorer as HTML that works on any page; `address` puts the state in the page's."""
    marked = html.escape(json.dumps(_state(state)), quote=True)
    mark = " data-address" if address else ""
    return f'<div class="condnum-grab" data-state="{marked}"{mark}></div>\n<script>{_SCRIPT}</script>'


def standalone(path: str | os.PathLike[str], **state: Ellipse) -> Path:
    """Write the explorer as one HTML file that needs no network.

    Its address carries the state, and what it leaves out stays as it is given here:
    `grab.html#theta=0.1,1,0&benign=1,0.1,0&harmful=1,0.7071,0`.
    """
    head = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<title>Grab the vectors</title>\n"
        "<style>:root { color-scheme: light dark; } "
        "body { margin: 0; background: light-dark(#ffffff, #14181e); }</style>\n"
    )
    return write_text(path, f"{head}{fragment(state, address=True)}\n</html>\n")


class GrabTheVectors(AnyWidget):
    """The explorer in JupyterLab and Voilà: `theta`, `benign` and `harmful` follow the reader's hand.

    Examples:
        >>> explorer = GrabTheVectors(theta=(0.2, 1, 20))
        >>> round(explorer.found.immunization.pretrain_ratio, 12)
        0.04
    """

    # A picture that the cell keeps shows only where the live one before it does not.
    _css = """
.jp-OutputArea-child:has(.condnum-grab-live) + .jp-OutputArea-child:has(.condnum-grab) { display: none; }
"""
    theta = traitlets.Tuple(START["theta"]).tag(sync=True)
    benign = traitlets.Tuple(START["benign"]).tag(sync=True)
    harmful = traitlets.Tuple(START["harmful"]).tag(sync=True)

    def __init__(self, **state: Ellipse) -> None:
        super().__init__(_esm=_SCRIPT + _RENDER, **_state(state))

    @traitlets.validate(*START)
    def _check(self, proposal: Any) -> Ellipse:
        return check_ellipse(proposal["trait"].name, proposal["value"])

    @property
    def state(self) -> dict[str, Ellipse]:
        """The three ellipses."""
        return {name: getattr(self, name) for name in START}

    @property
    def found(self) -> Grabbed:
        """What the explorer shows, as Python computes it."""
        return grab(**self.state)

    @classmethod
    def show(cls, *, static: bool = False, **state: Ellipse) -> Any:
        """Return the widget, or HTML that works without a kernel."""
        return _html(fragment(state)) if static else cls(**state)

    def _ipython_display_(self) -> None:
        display = import_module("IPython.display").display
        data, metadata = self._repr_mimebundle_()
        display(data, metadata=metadata, raw=True)
        if not on_a_page():  # which nobody can open again
            display(_html(fragment(self.state)))


_RENDER = """
export default {
  render({ model, el }) {
    el.classList.add("condnum-grab-live");
    const names = ["theta", "benign", "harmful"];
    const place = el.appendChild(document.createElement("div"));
    const asked = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
    let told = JSON.stringify(asked());
    const explorer = condnum.grab(place, asked(), {
      changed(state) {
        told = JSON.stringify(state);
        for (const name of names) model.set(name, state[name]);
        model.save_changes();
      },
    });
    const follow = () => { if (JSON.stringify(asked()) !== told) explorer.set(asked()); };
    for (const name of names) model.on(`change:${name}`, follow);
    return () => { for (const name of names) model.off(`change:${name}`, follow); };
  },
};
"""


def _axes(ellipse: Ellipse) -> Floats:
    """Return the directions of both axes, as columns."""
    phi = np.deg2rad(ellipse[2])
    return np.array([[np.cos(phi), -np.sin(phi)], [np.sin(phi), np.cos(phi)]])


def _state(state: Mapping[str, Ellipse]) -> dict[str, Ellipse]:
    """Return the start, with what is given in its place."""
    for unknown in state.keys() - START.keys():
        raise UnknownNameError("ellipse", unknown, START)
    return {name: check_ellipse(name, state.get(name, start)) for name, start in START.items()}


def _html(text: str) -> Any:
    return import_module("IPython.display").HTML(text)
