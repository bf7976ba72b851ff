"""Public names carry their contract: what they are, arguments, what comes back, an example that runs."""

import inspect

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


def test_names_are_listed_once_and_sorted_out():
    assert len(condnum.__all__) == len(set(condnum.__all__))
    assert set(condnum.__all__) <= set(dir(condnum))
    with pytest.raises(AttributeError, match="module 'condnum' has no attribute 'nothing'"):
        _ = condnum.nothing
