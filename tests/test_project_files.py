"""What tools read beside the package parses, and says what the package says."""

import re
import tomllib
from pathlib import Path

import yaml

import condnum

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(name: str):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


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
