"""The README's snippet runs, and prints what it says."""

import re


def test_first_snippet(capsys, request):
    text = (request.config.rootpath / "README.md").read_text(encoding="utf-8")
    snippet = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    exec(compile(snippet, "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert [round(float(printed[i]), 6) for i in (0, 1, 3)] == [25.0, 0.01, 2500.0]
    assert printed[2] == "True"


def test_every_public_name_is_importable_and_listed_once():
    import condnum

    assert sorted(condnum.__all__) == sorted(set(condnum.__all__))
    assert set(condnum.__all__) == set(condnum._HOME)
    for name in condnum.__all__:
        assert getattr(condnum, name).__doc__
