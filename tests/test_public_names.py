"""Public names carry their contract: what they are, arguments, what comes back, an example that runs."""

import inspect
import re
from pathlib import Path

import pytest

import condnum
import condnum.deep

NAMES = [(module, name) for module in (condnum, condnum.deep) for name in module.__all__]


@pytest.mark.parametrize(("module", "name"), NAMES, ids=[name for _, name in NAMES])
def test_contract(module, name):
    found = getattr(module, name)
    if inspect.isclass(found) or not callable(found):
        assert inspect.getdoc(found)
        return
    text = inspect.getdoc(found)
    signature = inspect.signature(found)
    for parameter in signature.parameters:
        assert f"    {parameter}: " in text.replace("*", ""), parameter
    assert "Returns:" in text or signature.return_annotation in (None, "None") or not signature.parameters
    if module is condnum:
        assert ">>> " in text


def test_at_most_forty_names_each_once():
    assert len(condnum.__all__) <= 40
    assert len({name for _, name in NAMES}) == len(NAMES)
    assert set(condnum.__all__) <= set(dir(condnum))
    with pytest.raises(AttributeError, match="module 'condnum' has no attribute 'nothing'"):
        _ = condnum.nothing


def test_editors_and_type_checkers_see_the_same_names():
    lines = Path(condnum.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    assert set(re.findall(r" as (\w+)", lines)) == set(condnum.__all__)
