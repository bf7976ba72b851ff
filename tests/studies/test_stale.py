"""Old results or new ones: what makes a finished cell stale, and what does not."""

import importlib
import sys
import warnings
from dataclasses import replace
from types import ModuleType

import pytest

from condnum import stale
from condnum.data import load_diabetes_tasks
from condnum.methods import registry
from condnum.stale import code_hash
from condnum.studies.frame.study import content_checksum
from condnum.studies.house_prices import HousePrices

BASE = """
from dataclasses import dataclass
from condnum.studies.frame import Cell
from condnum.studies.frame import Count, Study
from {helper} import FACTOR

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


@pytest.mark.parametrize("where", ["helper", "base", "derived"])
def test_an_edited_constant_is_not_mixed_into_a_resumed_run(modules, tmp_path, where):
    def texts(factor):
        here = {name: factor if name == where else 10 for name in ("helper", "base", "derived")}
        return {
            "stale_helper": f"FACTOR = {here['helper']}",
            "stale_base": BASE.format(helper="stale_helper", name="Base") + f"\n    SCALE = {here['base']}\n",
            "stale_derived": "from stale_base import Base\n\nclass Mine(Base):\n"
            f"    def compute(self, data, cell):\n        y = super().compute(data, cell)['y']\n"
            f"        return {{'y': y * self.SCALE * {here['derived']}}}\n",
        }

    first = modules(**texts(10)).Mine(2).run(out=tmp_path / "out", jobs=1)
    assert values(first) == [0, 1000]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = modules(**texts(10)).Mine(3).run(out=tmp_path / "out", jobs=1)
    assert (same.reused, same.computed, same.outdated) == (2, 1, 0)
    edited = modules(**texts(20)).Mine(4)
    with pytest.warns(UserWarning, match="3 finished cells in .* are of other code and are computed again"):
        run = edited.run(out=tmp_path / "out", jobs=1)
    assert values(run) == [0, 2000, 4000, 6000]
    assert run.provenance_table.set_index("what")["value"]["cells"].endswith("3 were there, of other code")
    assert len(list((tmp_path / "out" / "cells").glob("*.npz"))) == 4  # in the place of the others


def test_a_study_without_a_file_is_never_taken_for_another(tmp_path, monkeypatch):
    code = BASE.format(helper="types", name="Mine").replace("from types import FACTOR", "FACTOR = int(N)")
    for factor in (1, 2):
        typed = ModuleType("typed")  # as the module of what is typed at a prompt
        monkeypatch.setitem(sys.modules, "typed", typed)
        exec(f"N = {factor}\n{code}", vars(typed))
        assert values(typed.Mine().run(out=tmp_path / "out", jobs=1)) == [0, factor, 2 * factor]


@pytest.mark.parametrize(
    ("edited", "counts"),
    {
        "theory/spectra.py": True,  # imported by what the study imports
        "frame/study.py": True,
        "studies/erasure.py": False,  # another study
        "figures/style.py": False,  # a page
        "numpy": True,
        "timm": False,  # a study of nets needs it
    }.items(),
)
def test_what_a_study_imports_counts_and_nothing_else(monkeypatch, edited, counts):
    before, nets = HousePrices().code(), code_hash("condnum.deep.features")
    text, version = stale._text, stale.metadata.version
    monkeypatch.setattr(stale, "_text", lambda path: text(path) + "# new" * path.as_posix().endswith(edited))
    monkeypatch.setattr(stale.metadata, "version", lambda name: version(name) + ".1" * (name == edited))
    assert (HousePrices().code() != before) == counts
    assert (code_hash("condnum.deep.features") != nets) == (edited in ("numpy", "timm"))


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
    text = "from condnum.methods import Method\n\nclass Half(Method):\n    name = label = summary = 'half'\n"
    codes = []
    try:
        for share in (2, 2, 3):
            method = modules(half_method=f"{text}\n    SHARE = {share}\n").Half()
            codes.append(HousePrices("embedded", methods=(method,)).code())
    finally:
        registry.METHODS.pop("half", None)
    assert codes[0] == codes[1] != codes[2]
    assert HousePrices("embedded", methods="ours").code() not in codes
