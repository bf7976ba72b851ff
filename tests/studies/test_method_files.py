"""Methods from files: what a file must be for a study to take it in place of a name."""

import pytest
from condnum.studies.house_prices import HousePrices

from condnum.errors import DataNotFoundError, InvalidInputError
from condnum.methods import METHODS

LINEAR = """
class One:
    name = "one"

    def initial(self, problem, generator):
        return {}
"""


@pytest.mark.parametrize(
    ("name", "text", "study", "error", "message"),
    [
        ("mine", None, HousePrices, DataNotFoundError, "mine.py does not exist"),
        ("mine_0", "", HousePrices, InvalidInputError, "must define one method.* found 0"),
        ("mine_2", LINEAR.replace('"one"', '"pareto"'), HousePrices, InvalidInputError, "built-in method"),
        ("json", "", HousePrices, InvalidInputError, "another module is called json; rename"),
    ],
)
def test_files_that_are_refused(tmp_path, monkeypatch, name, text, study, error, message):
    monkeypatch.setitem(METHODS, "one", None)  # takes away what the study puts there
    monkeypatch.delitem(METHODS, "one")
    if text is not None:
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(error, match=message):
        study(methods=f"ours,{tmp_path / name}.py")
