"""The frame of the explorers, through a small one of its own; and what holds for every explorer."""

import json

import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

import numpy as np
import plotly.graph_objects as go
import traitlets

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.alignment import AlignmentExplorer
from condnum.lessons.condition_number import (
    GradientDescentExplorer,
    Zigzag,
    zigzag,
)
from condnum.lessons.explore import explore
from condnum.lessons.explorers import EXPLORERS
from condnum.lessons.frame.explorer import Explorer, Slider, with_controls
from condnum.lessons.frame.sheet import lines_figure
from condnum.lessons.frame.widget import show_figure
from condnum.lessons.limit import LimitExplorer
from condnum.lessons.regularizers import RegularizerExplorer


def payload(explorer):
    """What the page draws."""
    return json.loads(explorer.payload)


@pytest.mark.parametrize("kind", EXPLORERS.values(), ids=EXPLORERS)
def test_every_explorer_works_at_the_ends_of_every_control(kind):
    """The same traces and a caption everywhere; a code line that comes back."""
    explorer = kind()
    traces = len(payload(explorer)["figure"]["data"])

    def holds():
        assert explorer.error == ""
        assert len(payload(explorer)["figure"]["data"]) == traces
        assert len(payload(explorer)["caption"]) > 60

    for name, control in kind.controls.items():
        trait = explorer.traits()[name]
        ends = getattr(trait, "values", None) or [getattr(trait, end, None) for end in ("min", "max")]
        for end in ends:
            if end is not None:
                setattr(explorer, name, end)
                holds()
        if isinstance(control, Slider):
            beyond = {name: type(trait.default_value)(2 * trait.max + 1)}
            with pytest.raises(traitlets.TraitError):
                explorer.change(**beyond)
        explorer.change(**kind.spec()["state"])
    for preset in kind.presets:
        explorer.change(**preset.settings)
        holds()
    assert eval(payload(explorer)["code"], {kind.__name__: kind}).settings == explorer.settings


CAPTIONS = [
    (GradientDescentExplorer, {}, "0.6694 of the excess loss, exactly Kantorovich"),
    (GradientDescentExplorer, {"kappa": 1.0}, "one step arrives"),
    (AlignmentExplorer, 1, "its κ is 64.8% of the true one"),  # 4 / 6.172
    (AlignmentExplorer, {"theta_kappa": 1.0}, "θ has repeated singular values"),
    (RegularizerExplorer, 0, "σ<sub>1</sub> becomes 0"),
    (RegularizerExplorer, {"regularizer": "ill", "dimension": 2, "top": 100.0}, "printed bound is neg"),
    (RegularizerExplorer, {"regularizer": "ill", "dimension": 2}, "allows every step (k = 2)"),
    (LimitExplorer, {}, "the largest (i) with (ii) ≤ 1 is 3,066"),
    (LimitExplorer, {"null": "benign"}, "RIR grows without bound"),
    (LimitExplorer, {"kappa_harmful": 1.0}, "without a gradient. Algorithm 1 cannot"),
]


@pytest.mark.parametrize(("kind", "settings", "words"), CAPTIONS, ids=lambda value: str(value)[:40])
def test_captions(kind, settings, words):
    """A number is that of a preset."""
    chosen = settings if isinstance(settings, dict) else kind.presets[settings].settings
    assert words in kind.compute(**chosen).caption()


@with_controls(kappa=Slider("condition number κ", "σ₁/σ₂", 1, 1000))
def failing(*, kappa: float = 10.0) -> Zigzag:
    if kappa == 13:
        raise ValueError("no <13>")
    return zigzag(kappa=kappa)


class FailingExplorer(Explorer):
    compute = staticmethod(failing)

    @traitlets.validate("kappa")
    def _lucky(self, proposal):
        if proposal["value"] == 17:
            raise traitlets.TraitError("not this one")
        return proposal["value"]


def ask(explorer, number=1, **settings):
    """What the page does when its reader moves controls."""
    state = explorer.settings | settings
    explorer._on_message(None, {"kind": "state", "id": number, "state": state}, [])


def test_the_page_asks_and_traits_draw():
    explorer = GradientDescentExplorer(kappa=20.0)
    kappa, _, _, step = explorer.declaration["controls"]
    assert (kappa["low"], kappa["high"], kappa["log"], kappa["whole"]) == (1, 1000, True, False)
    assert step["whole"]
    ask(explorer, 7, step=4)
    assert (explorer.step, payload(explorer)["id"]) == (4, 7)
    assert payload(explorer)["figure"]["layout"]["title"]["text"].endswith("κ = 20, t = 4")
    assert "template" not in payload(explorer)["figure"]["layout"]
    assert "After 4 steps" in payload(explorer)["caption"]
    result = explorer.result
    ask(explorer, 8)  # the same once more is answered, and not computed
    assert (explorer.result, payload(explorer)["id"]) == (result, 8)
    explorer.change(step=1, kappa=3.0)
    assert payload(explorer)["state"] == explorer.settings
    assert explorer.settings_code.startswith("GradientDescentExplorer(kappa=3.0, angle=45.0, rule='exact'")


def test_unknown_names_change_nothing_and_are_seen():
    """They were kept as attributes that nobody reads, and the figure stayed as it was."""
    explorer = GradientDescentExplorer()
    before = explorer.settings
    with pytest.raises(UnknownNameError, match="'kapa'; did you mean 'kappa'"):
        explorer.change(step=3, kapa=3)
    ask(explorer, 4, kapa=3)
    assert payload(explorer)["error"].startswith("the settings stay as they are: unknown setting of Gradient")
    assert not hasattr(explorer, "kapa")
    assert explorer.settings == before


def test_controls_without_effect_are_declared_and_left_out():
    explorer = AlignmentExplorer(angle=30.0)
    only = {one["name"]: one["only"] for one in explorer.declaration["controls"] if one["only"]}
    assert only == {
        "angle": {"rotation": ["ends", "random"]}, "seed": {"rotation": ["random", "haar"]}
    }  # fmt: skip
    explorer.change(rotation="haar", seed=5)
    assert (explorer.error, explorer.angle) == ("", 30.0)  # for when it acts again
    assert "angle=" not in explorer.settings_code


def test_an_error_is_seen_kept_and_passes():
    explorer = FailingExplorer()
    explorer.kappa = 13
    assert explorer.error == "nothing can be drawn for these settings: ValueError: no <13>"
    assert (payload(explorer)["error"], payload(explorer)["figure"]) == (explorer.error, None)
    assert not {"caption", "code"} & payload(explorer).keys()
    with pytest.raises(InvalidInputError, match="no <13>"):
        FailingExplorer.show(static=True, kappa=13)
    explorer.kappa = 3
    assert (explorer.error, payload(explorer)["code"]) == ("", explorer.settings_code)
    ask(explorer, 2, kappa=17)
    assert (payload(explorer)["id"], payload(explorer)["state"]["kappa"]) == (2, 3)
    assert explorer.error == "the settings stay as they are: TraitError: not this one"
    assert payload(explorer)["figure"] is not None
    ask(explorer, 3)
    assert payload(explorer)["error"] == ""


def test_static_is_a_plain_figure_that_says_what_it_shows():
    figure = GradientDescentExplorer.show(static=True, step=3)
    assert type(figure) is go.Figure
    assert len(figure.data[2].y) == 4
    assert figure.layout.meta["explorer"] == "GradientDescentExplorer"
    assert figure.layout.meta["settings"]["step"] == 3
    assert show_figure(figure, static=True) is figure


def half(e, H):
    g = H @ e
    return e - 0.5 * (g @ g) / (g @ H @ g) * g


def exact(e, H):
    g = H @ e
    return (e - (g @ g) / (g @ H @ g) * g).tolist()


def spoiling(e, H):
    H[:] = 1  # its own copy
    return e @ H


def test_a_function_of_the_readers_is_drawn_beside_the_librarys():
    explorer = GradientDescentExplorer(descend=half)
    gray = [one for one in payload(explorer)["figure"]["data"] if one["name"] == "the library's"]
    assert sum(one["showlegend"] for one in gray) == 1
    named = {one["name"]: one for one in payload(explorer)["figure"]["data"]}
    assert named["iterates"]["x"] != named["the library's"]["x"]
    assert "Your <b>half</b> differs from the library's (gray) by up to" in payload(explorer)["caption"]
    assert payload(explorer)["code"].endswith("descend=half)")
    assert explorer.plain_figure().layout.meta == {"stack": True}  # no recording has it
    explorer.change(rule="constant")
    assert "half" not in payload(explorer)["caption"]  # it is not called
    truth = AlignmentExplorer(angle=45.0, predict=lambda theta, K: np.linalg.eigvalsh(theta.T @ K @ theta))
    assert "The κ of your predict is 100.0% of the true one" in truth.result.caption()
    same = GradientDescentExplorer(descend=exact)
    assert "agrees with the library's" in payload(same)["caption"]
    assert len(payload(same)["figure"]["data"]) == len(payload(GradientDescentExplorer())["figure"]["data"])
    assert same.plain_figure().layout.meta["explorer"] == "GradientDescentExplorer"


WRONG = [
    (spoiling, "returned an array of shape (2,)", False),
    (
        lambda e, H: e[:1],
        "returned an array of shape (1,); for these",
        True,
    ),
    (lambda e, H: None, "returned nothing yet; end it with return", True),
    (lambda e, H: e * np.inf, "expected finite real numbers", True),
    (lambda e, H: "w", "returned 'w'; expected", True),
    (lambda e, H: e / undefined, "NameError: name 'undefined' is not defined", True),  # ruff: ignore[undefined-name]
    (3.0, "descend must be a function, got 3.0; give its name without parentheses", True),
]


@pytest.mark.parametrize(("function", "words", "wrong"), WRONG, ids=[words[:30] for _, words, _ in WRONG])
def test_a_wrong_function_is_explained(function, words, wrong):
    explorer = GradientDescentExplorer(descend=function)
    assert (words in explorer.error) is wrong
    assert "Traceback" not in explorer.error


def test_a_cell_that_ran_again_is_heeded(monkeypatch):
    """Edit, run, drag: the explorer below need not be made again."""
    here = globals()
    monkeypatch.setattr(half, "__module__", "__main__")
    explorer = GradientDescentExplorer(descend=half)
    monkeypatch.setitem(here, "half", exact)
    assert "differs" in payload(explorer)["caption"]
    ask(explorer, 2, kappa=20.0)
    assert "<b>exact</b> agrees" in payload(explorer)["caption"]


def test_an_explorer_of_ones_own_function():
    def power(base=2.0, up=3, shape="x", both=True):
        figure = lines_figure("", {"": {shape: ([0, 1], [both, base**up])}}, x="", y="")
        return figure, f"{base:g} to the {up}"

    explorer = explore(power, base=(0, 10, 0.5), up=(1, 9), shape=["x", "y"], both=True)
    assert [one["kind"] for one in explorer.declaration["controls"]] == [
        "slider",
        "slider",
        "choice",
        "check",
    ]
    assert payload(explorer)["caption"] == "2 to the 3"
    explorer.change(base=3.0, shape="y")
    assert payload(explorer)["figure"]["data"][0]["name"] == "y"
    assert explorer.result.figure().data[0].y[1] == 27
    with pytest.raises(traitlets.TraitError):
        explorer.shape = "z"
    with pytest.raises(UnknownNameError, match="unknown argument of power 'bse'; did you mean 'base'"):
        explore(power, bse=(0, 1))
    with pytest.raises(InvalidInputError, match=r"control of base must be \(low, high\)"):
        explore(power, base="large")
    with pytest.raises(InvalidInputError, match="<lambda> needs a default for x, such"):
        explore(lambda x: x, x=(0, 1))
