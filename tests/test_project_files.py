"""What tools read beside the package parses, and says what the package says."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import condnum

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGETS = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))


def read(name: str):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def made(command: str) -> list[str]:
    return re.findall(r"\bmake ([a-z-]+)", command)


def test_citation():
    citation = read("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    for ours, theirs in {"title": "name", "license": "license"}.items():
        assert citation[ours] == PROJECT[theirs]
    assert citation["version"] == condnum.__version__
    assert citation["authors"] == PROJECT["authors"]
    paper = citation["preferred-citation"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    names = ", ".join(f"{author['given-names']} {author['family-names']}" for author in paper["authors"])
    assert f"{names}: *{paper['title']}*, ICML {paper['year']}." in readme


def test_changes_end_with_this_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"(?m)^## (\S+)", text)[1] == condnum.__version__


@pytest.mark.parametrize("name", ["test", "site"])
def test_workflows_make_what_there_is(name):
    workflow = read(f".github/workflows/{name}.yml")
    assert workflow[True]["push"]["branches"] == ["main"]  # YAML reads `on` as true
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = [target for step in steps for target in made(step.get("run", ""))]
    assert commands
    assert set(commands) <= set(TARGETS)


def test_the_tests_run_on_every_python_that_is_promised():
    promised = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if ":: Python :: 3." in line]
    job = read(".github/workflows/test.yml")["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == promised
    (chosen,) = (step["with"] for step in job["steps"] if "setup-python" in step.get("uses", ""))
    assert chosen["python-version"] == "${{ matrix.python }}"
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_conda_takes_the_pins():
    (pip,) = (entry["pip"] for entry in read("environment.yml")["dependencies"] if isinstance(entry, dict))
    assert pip == ["-r requirements.txt", "-e ."]
