"""The README's code runs, prints what it says, is as short as it claims, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

MOST_LINES = 32
README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


def section(text: str, title: str) -> str:
    return re.split(r"(?m)^## ", text.split(f"## {title}\n", 1)[1], maxsplit=1)[0]


def test_first_snippet(capsys):
    exec(compile(snippets(README)[0], "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    assert [round(float(printed[i]), 6) for i in (0, 1, 3)] == [25.0, 0.01, 2500.0]
    assert printed[2] == "True"


#: What a snippet needs that no test has: photographs, several devices.
NOT_HERE = ("imagenet/", "Fabric(")

#: By a word of the snippet: what holds after it.
CHECKS = {
    "HalfWhitening": """
result = condnum.relative_immunization_ratio(theta, problem.pretrain.covariance, problem.harmful.covariance)
assert 1 < result.rir < condnum.rir_ceiling(problem.pretrain.covariance, problem.harmful.covariance).value
""",
    "load_cancer_tasks": """
compact = study.results.query("convention == 'compact'").groupby("method")["rir"].mean()
assert compact["identity"] < compact["ours"] <= compact["optimal"] * (1 + 1e-6), compact
""",
    "SignDescent": """
assert panel.steps_table()["attacker"].tolist() == ["Gradient descent", "Sign descent"]
""",
    "Turned": """
ceilings = run.results.set_index("degrees")["ceiling"]
assert abs(ceilings[0] - 1) < 1e-9 and abs(ceilings[90] / 100**2 - 1) < 1e-9, ceilings
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, len(snippets(README))))
def test_a_snippet_runs_as_printed(tmp_path: Path, number: int):
    text = snippets(README)[number]
    if any(word in text for word in NOT_HERE):
        compile(text, "README.md", "exec")
        return
    script = tmp_path / "own.py"
    script.write_text(
        text + "".join(check for word, check in CHECKS.items() if word in text), encoding="utf-8"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_what_is_added_by_the_text_is_short():
    texts = snippets(section(README, "Add your own"))
    assert all(word in text for word, text in zip(CHECKS, texts, strict=True))
    assert max(text.count("\n") for text in texts) <= MOST_LINES


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
