"""The frame of the explorers, through a small one of its own; and what holds for every explorer."""

import json

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="the extra notebooks is not installed")

import plotly.graph_objects as go
import traitlets

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.lessons.aligned_tasks import AlignedTasksExplorer
from condnum.lessons.alignment import AlignmentExplorer, rotated_alignment, rotation_matrix
from condnum.lessons.ceiling import CeilingExplorer, RidgeCeilingExplorer
from condnum.lessons.condition_number import (
    GradientDescentExplorer,
    SpectrumDescentExplorer,
    Zigzag,
    plateau,
    spectrum,
    zigzag,
)
from condnum.lessons.explorer import Explorer, Slider, checked
from condnum.lessons.figure_view import shown_figure
from condnum.lessons.joint_steps import JointStepsExplorer
from condnum.lessons.recording import RECORDABLE
from condnum.lessons.regularizer_paths import RegularizerPathExplorer
from condnum.lessons.regularizers import RegularizerExplorer
from condnum.lessons.two_tasks import two_tasks, whiten


def shown(explorer):
    """What the page is told."""
    return json.loads(explorer.payload)


@pytest.mark.parametrize("kind", RECORDABLE.values(), ids=RECORDABLE)
def test_every_explorer_works_at_the_ends_of_every_control(kind):
    """One make-up of traces, a sentence, presets; a code line that comes back."""
    explorer = kind()
    traces = len(shown(explorer)["figure"]["data"])

    def holds():
        assert explorer.error == ""
        assert len(shown(explorer)["figure"]["data"]) == traces
        assert len(shown(explorer)["reading"]) > 60

    for name, control in kind.controls.items():
        trait = explorer.traits()[name]
        ends = getattr(trait, "values", None) or [getattr(trait, end, None) for end in ("min", "max")]
        for end in ends:
            if end is not None:
                setattr(explorer, name, end)
                holds()
        if isinstance(control, Slider):
            beyond = {name: type(trait.default_value)(2 * trait.max + 1)}
            with pytest.raises(InvalidInputError, match=f"{name} must lie between"):
                kind.compute(**beyond)
            with pytest.raises(traitlets.TraitError):
                explorer.change(**beyond)
        explorer.change(**kind.spec()["state"])
    for preset in kind.presets:
        explorer.change(**preset.settings)
        holds()
    assert eval(shown(explorer)["code"], {kind.__name__: kind}).settings == explorer.settings


READINGS = [
    (GradientDescentExplorer, {}, "0.6694 of the excess loss, exactly Kantorovich"),
    (GradientDescentExplorer, {"kappa": 1.0}, "one step arrives"),
    (GradientDescentExplorer, {"rule": "constant"}, "With the constant step"),
    (
        SpectrumDescentExplorer,
        {"kappa": 1e6, "start": "worst"},
        "not reached within 1,000 steps; the bound of Eq. 2",
    ),
    (AlignmentExplorer, 1, "its κ is 64.8% of the true one"),  # 4 / 6.172
    (AlignmentExplorer, 2, "of Haar draws, 90 % lie in 0.050 … 0.221"),
    (AlignmentExplorer, {"angle": 90.0, "rotation": "ends"}, "though not in the order of θ"),
    (AlignmentExplorer, {"theta_kappa": 1.0}, "θ has repeated singular values"),
    (AlignmentExplorer, {"data_spectrum": "clusters"}, "K has repeated eigenvalues"),
    (AlignedTasksExplorer, {}, "nothing is changed yet"),
    (AlignedTasksExplorer, 0, "RIR = 2,500, which is the theoretical limit: <b>immunized"),
    (RegularizerExplorer, 0, "σ<sub>1</sub> becomes 0"),
    (RegularizerExplorer, {"regularizer": "ill", "dimension": 2, "top": 100.0}, "printed bound is neg"),
    (RegularizerExplorer, {"regularizer": "ill", "dimension": 2}, "allows every step (k = 2)"),
    (RegularizerPathExplorer, {"sizes": "constant"}, "steps κ does not fall"),
    (RegularizerPathExplorer, {"regularizer": "ill"}, "exceed the range of float64"),
    (JointStepsExplorer, {"angle": 90.0}, ": immunized by"),
    (CeilingExplorer, {}, "the largest (i) with (ii) ≤ 1 is 3,066"),
    (CeilingExplorer, {"null": "pretrain"}, "RIR grows without bound"),
    (CeilingExplorer, {"kappa_pretrain": 1.0, "learning_rate": 1.0}, "The step size is too large"),
    *(
        (CeilingExplorer, {"kappa_harmful": 1.0, "null": null}, "without a gradient. Algorithm 1 cannot")
        for null in ("none", "both", "harmful", "pretrain")
    ),
    (RidgeCeilingExplorer, {"null": "none"}, "both limits tend to the compact one"),
    (RidgeCeilingExplorer, {"null": "both"}, "<i>not</i> to the compact 3,066"),
    (RidgeCeilingExplorer, {"null": "pretrain"}, "grows like 1/ε²"),
]


@pytest.mark.parametrize(("kind", "settings", "said"), READINGS, ids=lambda value: str(value)[:40])
def test_what_is_said(kind, settings, said):
    """A number is that of a preset."""
    chosen = settings if isinstance(settings, dict) else kind.presets[settings].settings
    assert said in kind.compute(**chosen).reading()


@pytest.mark.parametrize(
    ("call", "arguments", "match"),
    [
        (zigzag, {"rule": "exat"}, "unknown rule 'exat'; did you mean 'exact'"),
        (zigzag, {"kapa": 3.0}, "unknown argument of zigzag 'kapa'; did you mean 'kappa'"),
        (zigzag, {"step": 2.5}, "step must be a whole number, got 2.5"),
        (zigzag, {"kappa": "10"}, "kappa must be a number, got '10'"),
        (zigzag, {"kappa": np.nan}, "kappa must lie between 1 and 1,000, got nan"),
        (GradientDescentExplorer, {"kapa": 3}, "of GradientDescentExplorer 'kapa'; did you mean 'kappa'"),
        (rotated_alignment, {"rotation": "haar", "angle": 3.0}, "angle has no effect with rotation='haar'"),
        (rotated_alignment, {"rotation": "ends", "seed": 1}, "only with rotation='random' or 'haar'"),
        (rotation_matrix, {"rotation": "haar", "dimension": 3, "angle": 3.0}, "leave angle out"),
        (AlignmentExplorer, {"rotation": "haar", "angle": 3.0}, "angle has no effect with rotation='haar'"),
        (spectrum, {"shape": "linear", "dimension": 1, "kappa": 2.0}, "lie between 2 and ∞, got 1"),
        (plateau, {"kappa": 1.0}, "kappa must be above 1, got 1"),
        (two_tasks, {"null": "both", "dimension": 2}, "at least 3 with null='both'"),
        (whiten, {"theta": np.zeros((2, 2)), "covariance": np.eye(2)}, "rank 0"),
    ],
)
def test_bad_arguments(call, arguments, match):
    with pytest.raises(InvalidInputError, match=match):
        call(**arguments)


@checked(kappa=Slider("condition number κ", "σ₁/σ₂", 1, 1000))
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


@pytest.fixture
def explorer():
    """An explorer whose messages to the page are kept in `sent`."""
    explorer = GradientDescentExplorer(kappa=20.0)
    explorer.sent = []
    explorer.send = lambda content, buffers=(): explorer.sent.append((content, list(buffers)))
    return explorer


def test_no_picture_is_kept_of_an_error_nor_on_a_page(explorer, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data))
    FailingExplorer(kappa=13)._ipython_display_()
    assert len(shown) == 1  # nothing is drawn
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    explorer._ipython_display_()
    assert len(shown) == 2


def ask(explorer, number=1, **settings):
    """What the page does when its reader moves controls."""
    state = explorer.settings | settings
    explorer._on_message(None, {"kind": "state", "id": number, "state": state}, [])


def test_the_page_asks_and_traits_draw(explorer):
    assert (explorer.redraws, explorer.error) == (1, "")
    kappa, _, _, step, axes = explorer.declaration["controls"]
    assert (kappa["low"], kappa["high"], kappa["log"]) == (1, 1000, True)
    assert (kappa["whole"], step["whole"]) == (False, True)
    assert axes["options"] == [("equal", "equal"), ("fit", "stretched to the path")]
    explorer.step = 5
    assert explorer.redraws == 1  # nothing is new
    ask(explorer, 7, step=4)
    assert (explorer.step, explorer.redraws, shown(explorer)["id"]) == (4, 2, 7)
    assert shown(explorer)["figure"]["layout"]["title"]["text"].endswith("κ = 20, t = 4")
    assert "template" not in shown(explorer)["figure"]["layout"]
    assert "After 4 steps" in shown(explorer)["reading"]
    ask(explorer, 8)  # the same once more is answered, and not computed
    assert (explorer.redraws, shown(explorer)["id"]) == (2, 8)
    explorer.change(step=1, kappa=3.0, axes="fit")
    assert explorer.redraws == 3
    assert shown(explorer)["state"] == explorer.settings
    assert explorer.settings_code.startswith("GradientDescentExplorer(kappa=3.0, angle=45.0, rule='exact'")


def test_unknown_names_change_nothing_and_are_seen(explorer):
    """They were kept as attributes that nobody reads, and the figure stayed as it was."""
    before = explorer.settings
    with pytest.raises(UnknownNameError, match="'kapa'; did you mean 'kappa'"):
        explorer.change(step=3, kapa=3)
    ask(explorer, 4, kapa=3)
    assert shown(explorer)["error"].startswith("the settings stay as they are: unknown setting of Gradient")
    assert not hasattr(explorer, "kapa")
    assert (explorer.settings, explorer.sent) == (before, [])


def test_controls_without_effect_are_declared_and_left_out():
    explorer = AlignmentExplorer(angle=30.0)
    only = {one["name"]: one["only"] for one in explorer.declaration["controls"] if one["only"]}
    assert only == {
        "angle": {"rotation": ["ends", "neighbours", "random"]}, "seed": {"rotation": ["random", "haar"]}
    }  # fmt: skip
    explorer.change(rotation="haar", seed=5)
    assert (explorer.error, explorer.angle) == ("", 30.0)  # for when it acts again
    assert "angle=" not in explorer.settings_code
    again = eval(explorer.settings_code, {"AlignmentExplorer": AlignmentExplorer})
    assert shown(again)["figure"] == shown(explorer)["figure"]
    explorer.change(rotation="ends")
    assert (explorer.error, "seed=" in explorer.settings_code) == ("", False)


def test_an_error_is_seen_kept_and_passes():
    explorer = FailingExplorer()
    explorer.kappa = 13
    assert explorer.error == "nothing can be drawn for these settings: ValueError: no <13>"
    assert shown(explorer)["error"] == explorer.error
    assert shown(explorer)["figure"] is None
    assert not {"reading", "code"} & shown(explorer).keys()
    with pytest.raises(InvalidInputError, match="no <13>"):
        FailingExplorer.show(static=True, kappa=13)
    explorer.kappa = 3
    assert (explorer.error, shown(explorer)["code"]) == ("", explorer.settings_code)
    ask(explorer, 2, kappa=17)
    assert explorer.kappa == 3
    assert (shown(explorer)["id"], shown(explorer)["state"]["kappa"]) == (2, 3)
    assert explorer.error == "the settings stay as they are: TraitError: not this one"
    assert shown(explorer)["figure"] is not None
    ask(explorer, 3)
    assert shown(explorer)["error"] == ""


def test_static_is_a_plain_figure_that_says_what_it_shows():
    figure = GradientDescentExplorer.show(static=True, step=3)
    assert type(figure) is go.Figure
    assert len(figure.data[2].y) == 4
    assert figure.layout.meta["explorer"] == "GradientDescentExplorer"
    assert figure.layout.meta["settings"]["step"] == 3
    assert isinstance(GradientDescentExplorer.show(), GradientDescentExplorer)
    assert shown_figure(figure, static=True) is figure
