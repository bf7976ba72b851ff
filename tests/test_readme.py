"""The README's code runs, prints what it says, is as short as it claims, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

MOST_LINES = 30


@pytest.fixture(scope="module")
def readme(request: pytest.FixtureRequest) -> str:
    return (request.config.rootpath / "README.md").read_text(encoding="utf-8")


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def section(text: str, title: str) -> str:
    return re.split(r"(?m)^## ", text.split(f"## {title}\n", 1)[1], maxsplit=1)[0]


def test_first_snippet(readme, capsys):
    exec(compile(snippets(readme)[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert [round(float(printed[i]), 6) for i in (0, 1, 3)] == [25.0, 0.01, 2500.0]
    assert printed[2] == "True"


def test_a_method_a_data_set_and_an_attacker_are_added_by_the_text(readme, tmp_path: Path):
    method, data, attacker = snippets(section(readme, "Add your own"))
    for text in (method, data, attacker):
        assert text.count("\n") <= MOST_LINES
    check = """
from condnum.probing import AttackTask
pair = load_cancer_tasks()
assert set(study.results["method"]) == {"identity", "half", "optimal"}
compact = study.results.query("convention == 'compact'").set_index("method")["rir"]
assert compact["identity"] < compact["half"] < compact["optimal"], compact
report = attack_panel({"raw": None}, AttackTask(pair.X_H, pair.y_H), attackers=["gd", "sign"])
assert report.steps_table()["attacker"].tolist() == ["Gradient descent", "Sign descent"]
"""
    prelude = (
        "import condnum\nfrom condnum.data import load_diabetes_tasks\n"
        "problem = condnum.ImmunizationProblem.from_pair(load_diabetes_tasks())\n"
    )
    script = tmp_path / "own.py"
    script.write_text("\n".join((prelude, method, data, attacker, check)), encoding="utf-8")
    # A process of its own: the registries keep what is added.
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([8, 8])" in done.stdout


@pytest.mark.parametrize("name", ["README.md", "reports/README.md"])
def test_links_and_anchors_lead_somewhere(request, name):
    path = request.config.rootpath / name
    text = path.read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^#{1,6} (.+)$", re.sub(r"(?s)```.*?```", "", text))
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links
    for link in links:
        place, _, anchor = link.partition("#")
        if place.startswith("http"):
            continue
        assert not place or (path.parent / place).exists(), link
        assert place or anchor in anchors, link


def test_every_public_name_is_importable_and_listed_once():
    import condnum

    assert sorted(condnum.__all__) == sorted(set(condnum.__all__))
    assert set(condnum.__all__) == set(condnum._HOME)
    for name in condnum.__all__:
        assert getattr(condnum, name).__doc__
