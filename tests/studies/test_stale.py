"""Old results or new ones: what makes a finished cell stale, and what does not."""

import importlib
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from condnum.data import load_diabetes_tasks
from condnum.methods import METHODS
from condnum.studies.frame.study import content_checksum
from condnum.studies.house_prices import HousePrices

BASE = """
from dataclasses import dataclass
from condnum.studies.frame import Cell
from condnum.studies.frame import Count, Study

FACTOR = {factor}

@dataclass(frozen=True)
class {name}(Study):
    count: Count = 3

    def cells(self, data):
        return [Cell({{"x": x}}) for x in range(self.count)]

    def compute(self, data, cell):
        return {{"y": FACTOR * cell["x"]}}
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """`modules(name=text, …)`: write modules and import them afresh, as another process would; the last."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(**texts):
        for name, text in texts.items():
            (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        for name in texts:
            sys.modules.pop(name, None)
        return [importlib.import_module(name) for name in texts][-1]

    return write


def values(run):
    return run.tables["results"]["y"].tolist()


@pytest.mark.parametrize("where", ["base", "derived"])
def test_an_edited_constant_is_not_mixed_into_a_resumed_run(modules, tmp_path, where):
    def texts(factor):
        here = {name: factor if name == where else 10 for name in ("base", "derived")}
        return {
            "stale_base": BASE.format(factor=here["base"], name="Base"),
            "stale_derived": "from stale_base import Base\n\nclass Mine(Base):\n"
            f"    def compute(self, data, cell):\n        y = super().compute(data, cell)['y']\n"
            f"        return {{'y': y * {here['derived']}}}\n",
        }

    first = modules(**texts(10)).Mine(2).run(out=tmp_path / "out", jobs=1)
    assert values(first) == [0, 100]
    same = modules(**texts(10)).Mine(3).run(out=tmp_path / "out", jobs=1)
    assert (same.reused, same.computed) == (2, 1)
    run = modules(**texts(20)).Mine(4).run(out=tmp_path / "out", jobs=1)
    assert (run.reused, values(run)) == (0, [0, 200, 400, 600])


def test_a_study_without_a_file_is_never_taken_for_another(tmp_path, monkeypatch):
    code = BASE.format(factor="int(N)", name="Mine")
    for factor in (1, 2):
        typed = ModuleType("typed")  # as the module of what is typed at a prompt
        monkeypatch.setitem(sys.modules, "typed", typed)
        exec(f"N = {factor}\n{code}", vars(typed))
        assert values(typed.Mine().run(out=tmp_path / "out", jobs=1)) == [0, factor, 2 * factor]


def test_data_that_are_passed_are_what_is_computed_on(tmp_path):
    pair = load_diabetes_tasks()
    other = replace(pair, X_H=pair.X_H[:50] ** 2, y_H=pair.y_H[:50])  # with the checksum of the file
    study = HousePrices(methods="initial", seeds=2)
    one = study.run(other, jobs=1).tables["results"]
    assert set(one["dataset"]) == {"diabetes"}
    whole, cut = (study.run(data, jobs=1, out=tmp_path) for data in (pair, other))
    assert cut.reused == 0
    assert (
        cut.tables["results"]["rir"].tolist()
        == one["rir"].tolist()
        != whole.tables["results"]["rir"].tolist()
    )
    assert study.run(load_diabetes_tasks(), jobs=1, out=tmp_path).computed == 0  # the same numbers
    assert content_checksum(pair) == content_checksum(load_diabetes_tasks())


def test_the_code_of_a_method_of_ones_own_counts(modules):
    text = "class Half:\n    name = 'half'\n\n    def initial(self, problem, generator):\n        return {}\n"
    codes = []
    try:
        for share in (2, 2, 3):
            method = modules(half_method=f"{text}\n    SHARE = {share}\n").Half()
            codes.append(HousePrices("embedded", methods=(method,)).code())
    finally:
        METHODS.pop("half", None)
    assert codes[0] == codes[1] != codes[2]
    assert HousePrices("embedded", methods="ours").code() not in codes
