"""Public names carry their contract: what they are, arguments, what comes back, an example that runs."""

import ast
import inspect
from collections import defaultdict
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


def test_names_are_listed_once_and_sorted_out():
    assert len(condnum.__all__) == len(set(condnum.__all__))
    assert set(condnum.__all__) <= set(dir(condnum))
    with pytest.raises(AttributeError, match="module 'condnum' has no attribute 'nothing'"):
        _ = condnum.nothing


def test_a_name_without_underscore_is_defined_in_one_module():
    homes = defaultdict(set)
    for path in Path(condnum.__file__).parent.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            targets = [node, *getattr(node, "targets", []), getattr(node, "target", None)]
            for name in (getattr(part, "name", getattr(part, "id", "_")) for part in targets):
                homes[name] |= {path.name} if path.name == "__init__.py" else {str(path)}
    assert {name: found for name, found in homes.items() if len(found) > 1 and name[:1] != "_"} == {}
