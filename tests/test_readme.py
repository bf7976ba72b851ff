"""README, reports, how-to pages, citation: snippets run, commands are parsed, links and paths lead somewhere.

A page's snippets run as printed, each as a script; where they name photographs, cards and all attackers,
digits, a tiny net, two steps and one attacker stand in. Commands are parsed by the command line itself, down
to the settings of their studies, and then not run: they take minutes to hours.
"""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import nbformat
import pytest
import torch
import yaml

import condnum
from condnum import cli
from condnum.errors import DataNotFoundError, UnknownNameError
from condnum.methods import METHODS
from condnum.page import command as runner
from condnum.page.reproduce import SPINE
from condnum.page.run import check

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "condnum/site/pages/howto"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("reports/**/README.md")), *sorted(GUIDE.glob("*.md")))
}
EACH_PAGE = pytest.mark.parametrize("name", PAGES)


def fences(text: str, language: str) -> list[str]:
    return re.findall(rf"(?m)^```{language}\n((?s:.*?))^```", text)


def prose(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```", "", text)


# Snippets.

#: In a snippet's place: what is here and takes seconds.
STAND_INS = {
    '"raw": None, "pareto": result.theta})': '"raw": None, "pareto": result.theta}, attackers=["gd"])',
    '"imagenet/"': '"digits-8x8:0-4"',
    '"cars/"': '"digits-8x8:5-9"',
    '"resnet18", pretrained=True': '"test_resnet", pretrained_cfg_overlay={"input_size": (3, 32, 32)}',
    "batch_size=256": "batch_size=32, steps=2",
    "deep.theta_I, D_P, D_H)": "deep.theta_I, D_P, D_H, groups=1)",
}
#: By a word of the snippet: what holds after it.
CHECKS = {
    "attack_panel(X, y, thetas": """
table = panel.steps_table()
assert table["pareto"].tolist() == [">20,000", "1", "1"] and table["erase"].tolist() == ["∞"] * 3, table
assert immunizer.verdict_.benign_slowdown < 1 < 1e6 < immunizer.verdict_.harmful_slowdown
""",
    "result.explanation": """
assert condnum.relative_immunization_ratio(result.theta, P, H).success
assert float(report.factor_table()["pareto"][0]) > 10
""",
    "run.ckpt": """
assert deep.steps == 2 and deep.theta_I.name == "test_resnet"
""",
    "standalone": """
assert "[0.2, 1.0, 20.0]" in open("grab.html", encoding="utf-8").read()
""",
    "@explore(kappa=Log": """
assert "at most 8.9e-16" in bound(kappa=2.0)[1] and bound.show(kappa=2.0).error == ""
""",
    "zigzag.show": """
assert (seen, widget.state["kappa"], widget.error) == ([3.0], 3.0, "")
""",
    "LogKappa": """
import condnum
from condnum.data import load_diabetes_tasks
from condnum.deep import Backbone, DeepSettings, evaluation_transform, immunize_backbone, open_images
problem = condnum.ImmunizationProblem.from_pair(load_diabetes_tasks())
verdict = condnum.immunize(problem, LogKappa()).verdict
assert verdict.success, verdict
net = Backbone("test_resnet", num_classes=5)
data = [open_images(f"digits-8x8:{digits}", limit=30) for digits in ("0-4", "5-9")]
small = evaluation_transform(net, input_size=16)
done = immunize_backbone(net, *data, method=LogKappa(), settings=DeepSettings(steps=2), transform=small)
assert done.steps == 2 and done.history["kappa_harmful"].iloc[-1] < done.history["kappa_harmful"].iloc[0] < 0
""",
    "load_cancer_tasks": """
assert found["identity"].rir < found["ours"].rir <= found["max_rir"].rir * (1 + 1e-6), found
""",
    "sign_descent": """
assert panel.steps_table()["attacker"].tolist() == ["Gradient descent", "Sign descent"]
""",
    "Turned by 90": """
import sys
from condnum.experiments import frame
run = frame.run(sys.modules[__name__], angles=3, kappa=100.0, jobs=1, quiet=True)
assert run.sentence.endswith("an RIR of 10,000."), run.sentence
assert len(figure(run).data) == 1
limits = run.table.set_index("degrees")["limit"]
assert abs(limits[0] - 1) < 1e-9 and abs(limits[90] / 100**2 - 1) < 1e-9, limits
""",
}


def scripts(text: str) -> list[str]:
    """A page's snippets, each with what holds after it."""
    whole: list[str] = []
    for snippet in fences(text, "python"):
        for named, stand_in in STAND_INS.items():
            snippet = snippet.replace(named, stand_in)
        checks = (check for word, check in CHECKS.items() if word in snippet)
        whole.append(snippet + "".join(checks))
    return whole


def test_every_stand_in_and_check_has_its_snippet():
    snippets = "".join(snippet for text in PAGES.values() for snippet in fences(text, "python"))
    assert not [word for word in (*STAND_INS, *CHECKS) if word not in snippets]


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [["README.md"], pytest.param([name for name in PAGES if name != "README.md"], marks=pytest.mark.long)],
    ids=["README", "guide"],
)
def test_snippets_run_as_printed(tmp_path, names):
    """Each as a script of its own, in one process, which imports the libraries once."""
    files = []
    for text in (text for name in names for text in scripts(PAGES[name])):
        files.append(f"own_{len(files)}.py")
        (tmp_path / files[-1]).write_text(text, encoding="utf-8")
    each = f"import runpy\nfor file in {files}:\n    runpy.run_path(file, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", each], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Commands.

#: A notebook of a reader's own, as the guide describes it.
OWN_NOTEBOOK = "angles: int = 4\nkappa: float = 100.0\njobs: int = 1\nout: str = ''"
FIXED = (". .venv/bin/activate", "conda env create -f environment.yml", "conda activate condnum")
TARGETS = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"))
MAKE_VARIABLES = re.findall(r"(?m)^([A-Z]+) *\??:?=", (ROOT / "Makefile").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def commands(text: str) -> list[list[str]]:
    """The words of a page's commands, in fences and between backticks, without comments and variables."""
    lines = [line for fence in fences(text, "sh") for line in fence.replace("\\\n", "").splitlines()]
    lines += re.findall(r"`((?:[A-Z_]+=\S+ )*(?:condnum|make|pytest|pip|conda|dask)\s[^`]+)`", prose(text))
    found = []
    for line in lines:
        words = shlex.split(re.sub(r"^([A-Z_]+=\S+\s)*", "", line), comments=True)
        if words and "…" not in "".join(words):
            found.append(words)
    return found


def checked(book, name, given, out, **_):
    """Check what a run is given; photographs, nets and folders of another run need not be here."""
    try:
        check(book, given)
    except DataNotFoundError:
        pass
    except UnknownNameError as error:
        if "FOLDER" not in str(error):
            raise


@pytest.fixture
def parsed_only(tmp_path, monkeypatch):
    """Commands end where they would begin to compute; what they are given is checked until then."""

    def invoke(command, context):
        if command.name == "reproduce":
            assert {name for name in context.params["only"].split(",") if name} <= {*SPINE}
        elif command.name not in ("download", "lab", "site"):
            really(command, context)

    really = click.Command.invoke
    monkeypatch.setattr(click.Command, "invoke", invoke)
    monkeypatch.setitem(METHODS, "log_kappa", None)  # takes away what a command puts there
    monkeypatch.delitem(METHODS, "log_kappa")
    monkeypatch.setattr(runner, "run_and_report", checked)
    monkeypatch.delenv("CONDNUM_DATA", raising=False)  # what is bundled is smaller
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    own = nbformat.v4.new_code_cell(OWN_NOTEBOOK, metadata={"tags": ["parameters"]})
    for name in ("PATH.ipynb", "my_notebook.ipynb"):
        nbformat.write(nbformat.v4.new_notebook(cells=[own]), tmp_path / name)
    (tmp_path / "log_kappa.py").write_text(
        fences(PAGES["condnum/site/pages/howto/own_method.md"], "python")[0]
    )
    monkeypatch.chdir(tmp_path)


@EACH_PAGE
def test_commands_are_known(name, parsed_only, capsys):
    for program, *words in commands(PAGES[name]):
        line = f"{program} {' '.join(words)}"
        if program == "condnum":
            words += ["--help"] if words == ["audit"] else []  # alone it audits digits, half a minute
            assert cli.main(words) == 0, f"{line}: {capsys.readouterr().err}"
        elif program == "make":
            assert words, line
            names = [word.partition("=") for word in words]
            assert all(name in (MAKE_VARIABLES if sign else TARGETS) for name, sign, _ in names), line
        elif program == "pip":
            package, _, extra = words[-1].partition("[")
            assert (words[0], package) in (("install", "condnum"), ("install", ".")), line
            assert set(extra.rstrip("]").split(",")) <= {"", *PROJECT["optional-dependencies"]}, line
        elif program == "pytest":
            assert (ROOT / words[0]).is_file(), line
        elif program != "dask":
            assert line in FIXED, line


# Links and paths.

#: Named by the text, made by a command.
MADE = ("reports/index.html", "reports/site", "reports/site/index.html")


def anchors(text: str) -> set[str]:
    headings = re.findall(r"(?m)^#{1,6} (.+)$", prose(text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EACH_PAGE
def test_links_anchors_and_paths_lead_somewhere(name):
    home = (ROOT / name).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(PAGES[name])):
        place, _, anchor = link.partition("#")
        if place.startswith("http"):
            continue
        if place.startswith("../learn/"):  # a lesson, of which the site makes a page
            assert (ROOT / "notebooks" / Path(place).name).exists(), link
            continue
        target = (home / place).resolve() if place else ROOT / name
        assert target.exists(), link
        assert home != GUIDE or target.is_relative_to(GUIDE.parent), f"{link} is not a page of the site"
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link
    paths = re.findall(r"`((?:condnum|notebooks|reports|tests)/[\w./-]+)`", PAGES[name])
    assert not [path for path in paths if path not in MADE and not (ROOT / path).exists()]


# What tools read beside the package.


def test_citation_and_changes_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for ours, theirs in {"title": "name", "license": "license", "authors": "authors"}.items():
        assert citation[ours] == PROJECT[theirs]
    assert citation["version"] == condnum.__version__
    assert re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text("utf-8"))[1] == condnum.__version__
