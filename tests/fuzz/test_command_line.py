"""Words and files on the command line: a status of 0, 1 or 2 and a paragraph, never a traceback."""

import re

import numpy as np
import pytest
from hypothesis import strategies as st

from condnum.cli import main
from condnum.errors import CondnumError
from condnum.report.notebook import experiment_names

COMMANDS = ("audit", *(f"run {name}" for name in experiment_names()), "data", "run", "")
PLAIN = """
0 1 2 -1 1e999 nan inf embedded auto ours ours,imma , 4-7 4-7,4-7 9-9 -- - ~ ~nobody
/ /dev/null /proc/self/mem
. .. x.npy X.npy X.csv y.npy broken.parquet broken.npz
http://127.0.0.1:9 tcp://127.0.0.1:9 cuda:99 cpu
mps meta none regression classification mnist:0-4 digits-8x8:0-4 test_resnet
resnet18-cars house-prices digits published
%s {} [bold] *
"""
WORDS = [*PLAIN.split(), "", "½", "\u202e", "\ud800", "a\0b", "x" * 5000, "1" * 4301]


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A folder with a few files, no data elsewhere, and no kernel: everything up to its start is real."""
    np.save(tmp_path / "X.npy", np.random.default_rng(0).normal(size=(6, 3)))
    np.save(tmp_path / "y.npy", np.arange(6) % 2)
    (tmp_path / "X.csv").write_text("a,b,c\n1,2,3\n4,5,6\n")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "broken.npz").write_bytes(b"PK\3\4")
    monkeypatch.chdir(tmp_path)
    for name in ("CONDNUM_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("condnum.report.command.run_into_folder", lambda *_, **__: {"failures": []})
    return tmp_path


def called(words, capsys):
    """Run the command line and check what it says; raise what a loader would, to count as refused."""
    capsys.readouterr()
    status = main(words)
    written = capsys.readouterr()
    assert status in (0, 1, 2)
    assert "Traceback" not in written.err
    if status == 2:
        assert written.err.strip()
        raise CondnumError("the command line refused it, in words.")


@pytest.fixture
def options(capsys):
    """The options that the help of each command names; no run comes so far that --out matters."""
    found = {}
    for command in COMMANDS:
        assert main([*command.split(), "--help"]) == 0
        named = re.findall(r"--[a-z][\w-]*", capsys.readouterr().out)
        found[command] = sorted({*named, "--nonsense"} - {"--debug", "--out"})
    return found


@st.composite
def command_lines(draw, options):
    command = draw(st.sampled_from(COMMANDS))
    words = command.split()
    for _ in range(draw(st.integers(0, 4))):
        option = draw(st.sampled_from(options[command]))
        value = draw(st.one_of(st.sampled_from(WORDS), st.sampled_from(WORDS), st.text(max_size=12)))
        forms = [[option, value], [option, value], [f"{option}={value}"], [option], [value]]
        words += draw(st.sampled_from(forms))
    return [word for word in words if word != "--debug"]


def test_words(fuzz, offline, options, capsys):
    fuzz(command_lines(options), lambda words: called(words, capsys), examples=30)
