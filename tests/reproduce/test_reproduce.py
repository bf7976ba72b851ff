"""Running experiments in order, reusing what is unchanged, going on after failures and stops."""

import json
from pathlib import Path

import pytest

from condnum.errors import InvalidInputError, UnknownNameError
from condnum.report import reproduce as run_module
from condnum.report.reproduce import (
    QUICK_PAIRS,
    RECORD,
    Ended,
    Fingerprint,
    experiments,
    read_record,
    reproduce,
)

NAMES = [experiment.name for experiment in experiments("quick")]


class FakeRunner:
    """Leaves whole run folders, fails or is stopped where told."""

    def __init__(self, fails: str = "", stops: str = "") -> None:
        self.fails, self.stops, self.ran = fails, stops, []

    def __call__(self, words, *, progress) -> Ended:
        folder = Path(words[words.index("--out") + 1])
        if folder.name == self.stops:
            raise KeyboardInterrupt
        self.ran.append(folder.name)
        if folder.name == self.fails:
            return Ended(2, "no room on Mars; take fewer rows.")
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("report.html", "report.ipynb", "provenance.json"):
            (folder / name).write_text(" ".join(words))
        return Ended(0, "")


@pytest.fixture(autouse=True)
def known_code(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Fingerprints that do not hash the tree, and that a test can change."""
    parts = {"code": "a" * 64, "sum": "b" * 64}
    monkeypatch.setattr(
        run_module,
        "fingerprint",
        lambda words, data: Fingerprint(tuple(words), dict.fromkeys(data, parts["sum"]), parts["code"]),
    )
    return parts


def test_all_run_in_order_and_the_record_tells(tmp_path: Path) -> None:
    runner, ended = FakeRunner(), []
    record = reproduce("quick", tmp_path, runner=runner, on_end=lambda i, n, entry: ended.append((i, n)))
    assert runner.ran == NAMES
    assert ended == [(i, len(NAMES)) for i in range(1, len(NAMES) + 1)]
    assert all(entry.status == "finished" and entry.folder == entry.name for entry in record.experiments)
    assert read_record(tmp_path) == record


def test_what_is_unchanged_is_reused(tmp_path: Path) -> None:
    first = reproduce("quick", tmp_path, runner=FakeRunner())
    again = FakeRunner()
    record = reproduce("quick", tmp_path, runner=again)
    assert again.ran == []
    assert {entry.status for entry in record.experiments} == {"reused"}
    assert [entry.seconds for entry in record.experiments] == [entry.seconds for entry in first.experiments]


@pytest.mark.parametrize("part", ["code", "sum"])
def test_changed_code_or_data_runs_again(tmp_path: Path, known_code: dict[str, str], part: str) -> None:
    reproduce("quick", tmp_path, runner=FakeRunner())
    known_code[part] = "c" * 64
    again = FakeRunner()
    reproduce("quick", tmp_path, runner=again)
    expected = NAMES if part == "code" else [e.name for e in experiments("quick") if e.data]
    assert again.ran == expected


def test_a_result_that_is_not_whole_runs_again(tmp_path: Path) -> None:
    reproduce("quick", tmp_path, runner=FakeRunner())
    (tmp_path / "mnist" / "report.html").unlink()
    again = FakeRunner()
    reproduce("quick", tmp_path, runner=again)
    assert again.ran == ["mnist"]


def test_data_that_are_not_here_are_never_a_reason_to_reuse(
    tmp_path: Path, known_code: dict[str, str]
) -> None:
    known_code["sum"] = ""
    reproduce("quick", tmp_path, runner=FakeRunner())
    again = FakeRunner()
    reproduce("quick", tmp_path, runner=again)
    assert again.ran == [e.name for e in experiments("quick") if e.data]


def test_a_failure_does_not_stop_the_others_and_keeps_an_older_result(
    tmp_path: Path, known_code: dict[str, str]
) -> None:
    reproduce("quick", tmp_path, runner=FakeRunner())
    known_code["code"] = "d" * 64
    runner = FakeRunner(fails="deep")
    record = reproduce("quick", tmp_path, runner=runner)
    assert runner.ran == NAMES
    failed = record["deep"]
    assert (failed.status, failed.folder) == ("failed", "deep")
    assert failed.error == "no room on Mars; take fewer rows."
    assert failed.fingerprint is not None
    assert failed.fingerprint.code == "a" * 64  # the folder's, not this try's
    assert all(entry.status == "finished" for entry in record.experiments if entry.name != "deep")
    third = FakeRunner()
    assert reproduce("quick", tmp_path, runner=third)["deep"].status == "finished"
    assert third.ran == ["deep"]


def test_a_first_failure_has_no_folder(tmp_path: Path) -> None:
    record = reproduce("quick", tmp_path, runner=FakeRunner(fails="deep"))
    assert (record["deep"].status, record["deep"].folder) == ("failed", None)


def test_a_stop_keeps_what_is_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        reproduce("quick", tmp_path, runner=FakeRunner(stops=NAMES[2]))
    kept = read_record(tmp_path)
    assert kept is not None
    assert [entry.status for entry in kept.experiments[:3]] == ["finished", "finished", "waiting"]
    runner = FakeRunner()
    reproduce("quick", tmp_path, runner=runner)
    assert runner.ran == NAMES[2:]


def test_a_stop_costs_no_result_that_was_waiting_for_its_check(tmp_path: Path) -> None:
    reproduce("quick", tmp_path, runner=FakeRunner())
    (tmp_path / NAMES[1] / "report.html").unlink()
    with pytest.raises(KeyboardInterrupt):
        reproduce("quick", tmp_path, runner=FakeRunner(stops=NAMES[1]))
    runner = FakeRunner()
    reproduce("quick", tmp_path, runner=runner)
    assert runner.ran == [NAMES[1]]


def test_while_it_runs_the_record_says_what_is_still_to_come(tmp_path: Path) -> None:
    seen = []

    def on_end(index: int, total: int, entry: object) -> None:
        record = read_record(tmp_path)
        assert record is not None
        seen.append([e.status for e in record.experiments])

    reproduce("quick", tmp_path, only=NAMES[:2], runner=FakeRunner(), on_end=on_end)
    rest = ["not run"] * (len(NAMES) - 2)
    assert seen == [["finished", "waiting", *rest], ["finished", "finished", *rest]]


def test_only_some_leave_the_others_as_they_were(tmp_path: Path) -> None:
    reproduce("quick", tmp_path, runner=FakeRunner())
    runner = FakeRunner()
    (tmp_path / "deep" / "report.html").unlink()
    record = reproduce("quick", tmp_path, only=["limits"], runner=runner)
    assert runner.ran == []
    assert (record["limits"].status, record["mnist"].status) == ("reused", "reused")
    assert (record["deep"].status, record["deep"].folder) == ("not run", None)


def test_images_that_nobody_may_hand_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONDNUM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    record = reproduce("full", tmp_path / "out", only=["deep-vit-cars"], runner=FakeRunner())
    entry = record["deep-vit-cars"]
    assert entry.status == "not run"
    assert "needs the images of imagenet/ and cars/" in entry.error
    assert "--preset vit-cars" in entry.error
    for name in ("imagenet", "cars"):
        (tmp_path / "data" / name).mkdir(parents=True)
    runner = FakeRunner()
    again = reproduce("full", tmp_path / "out", only=["deep-vit-cars"], runner=runner)
    assert again["deep-vit-cars"].status == "finished"
    said = (tmp_path / "out" / "deep-vit-cars" / "report.html").read_text()
    assert f"--pretrain {tmp_path}/data/imagenet --harmful {tmp_path}/data/cars" in said


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="scale"):
        experiments("huge")
    with pytest.raises(UnknownNameError, match="mnits"):
        experiments("quick", ["mnits"])


def test_another_scale_in_the_folder_is_refused(tmp_path: Path) -> None:
    reproduce("quick", tmp_path, only=["mnist"], runner=FakeRunner())
    with pytest.raises(InvalidInputError, match="scale 'quick', not 'full'"):
        reproduce("full", tmp_path, runner=FakeRunner())


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: "no json",
        lambda value: json.dumps([]),
        lambda value: json.dumps(value | {"format": 99}),
        lambda value: json.dumps({name: part for name, part in value.items() if name != "source"}),
        lambda value: json.dumps(value | {"experiments": [{"name": "mnist"}]}),
        lambda value: json.dumps(
            value | {"experiments": [value["experiments"][0] | {"status": "wonderful"}]}
        ),
    ],
    ids=["text", "list", "format", "field", "experiment", "status"],
)
def test_a_damaged_record_is_refused_and_named(tmp_path: Path, damage) -> None:
    reproduce("quick", tmp_path, only=["mnist"], runner=FakeRunner())
    value = json.loads((tmp_path / RECORD).read_text())
    (tmp_path / RECORD).write_text(damage(value))
    with pytest.raises(InvalidInputError, match=r"reproduction\.json is no record.*remove it"):
        reproduce("quick", tmp_path, runner=FakeRunner())


def test_the_quick_pairs_have_each_digit_twice_on_each_side() -> None:
    assert len(set(QUICK_PAIRS)) == 20
    for side in zip(*QUICK_PAIRS, strict=True):
        assert sorted(side) == sorted([*range(10)] * 2)
    mnist = next(experiment for experiment in experiments("quick") if experiment.name == "mnist")
    assert mnist.words[-1].startswith("0-1,0-3,1-2,")
