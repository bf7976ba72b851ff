"""The explorer of notebook 5: uploads, paths, and errors in its own red line."""

import datetime
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ipywidgets", reason="the extra notebooks is not installed")
pytest.importorskip("plotly", reason="the extra notebooks is not installed")

from condnum.errors import InvalidInputError
from condnum.lessons.own_data import UPLOAD_BYTES, OwnDataExplorer, own_data, own_data_reading, own_data_table

P, H = np.diag([10.0, 1.0]), np.diag([2.0, 1.0])


def uploaded(name, content):
    file = {"name": name, "type": "", "size": len(content), "content": memoryview(content)}
    return (file | {"last_modified": datetime.datetime.now(tz=datetime.UTC)},)


def npy(tmp_path, X):
    np.save(tmp_path / "X.npy", X)
    return (tmp_path / "X.npy").read_bytes()


def test_two_uploads_replace_the_example(tmp_path):
    explorer = OwnDataExplorer()
    assert (explorer.error, len(explorer.result.columns)) == ("", 8)
    explorer.uploads["pretrain"].value = uploaded("P.npy", npy(tmp_path, P))
    assert "X_P is there, X_H is still missing" in explorer.error
    explorer.uploads["harmful"].value = uploaded("H.npy", npy(tmp_path, H))
    assert explorer.error == ""
    assert explorer.result.pretrain.compact.value == pytest.approx(100)
    assert explorer.result.harmful.compact.value == pytest.approx(4)
    again = eval(explorer.settings_code, {"OwnDataExplorer": OwnDataExplorer})
    assert again.result.ceiling == explorer.result.ceiling
    explorer.reset()
    assert (explorer.error, len(explorer.result.columns)) == ("", 8)


def blank(explorer):
    shown = (explorer.children[1].layout.display, explorer.code.value, explorer.reading_line.value)
    return explorer.result is None and shown == ("none", "", "") and explorer.buttons["Data as CSV"].disabled


def test_bad_uploads_are_told_beside_their_field_and_leave_nothing_old(tmp_path):
    explorer = OwnDataExplorer()
    explorer.uploads["pretrain"].value = uploaded("large.npy", bytes(UPLOAD_BYTES + 1))
    assert "give its path" in explorer.alerts["pretrain"].value
    assert explorer.pretrain == ""
    assert blank(explorer)
    explorer.reset()
    assert not blank(explorer)
    explorer.uploads["pretrain"].value = uploaded("../../P.csv", b"name,a\nx,1\n")
    assert "X_H is still missing" in explorer.alerts["harmful"].value
    explorer.uploads["harmful"].value = uploaded("H.csv", b"name,a\nx,1\ny,2\n")
    assert "do not hold numbers: name" in explorer.error
    assert "do not hold numbers: name" in explorer.alerts["pretrain"].value
    assert explorer.alerts["harmful"].value == explorer.alert.value == ""
    assert blank(explorer)
    assert Path(explorer.pretrain).name == "P.csv"
    assert Path(explorer._folder.name) in Path(explorer.pretrain).resolve().parents  # not beside it


def test_columns_are_listed_flagged_and_left_out(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    for name in "PH":
        rows = "\n".join(f"{a},{b},{c},{i % 2}" for i, (a, b, c) in enumerate(X))
        (tmp_path / f"{name}.csv").write_text(f"a,<b>,c,label\n{rows}\n")
    files = {"pretrain": str(tmp_path / "P.csv"), "harmful": str(tmp_path / "H.csv")}
    explorer = OwnDataExplorer(**files)
    assert "look like the answer (label: so it is called)" in explorer.reading_line.value
    assert "<td>&lt;b&gt;</td>" in explorer.reading_line.value
    explorer.drop = "label"
    assert "look like" not in explorer.reading_line.value.split("<details")[0]
    assert len(explorer.result.columns) == 3
    explorer.drop = "labels"
    assert "did you mean" in explorer.alerts["drop"].value
    assert blank(explorer)
    explorer.change(drop="label", standardise=True)
    assert explorer.result.ceiling == own_data(**files, drop="label", standardise=True).ceiling


def test_paths_are_typed_and_missing_ones_told(tmp_path):
    np.save(tmp_path / "P.npy", P)
    np.save(tmp_path / "H.npy", H)
    explorer = OwnDataExplorer()
    explorer.change(pretrain=str(tmp_path / "P.npy"), harmful=str(tmp_path / "H.npy"))
    assert explorer.error == ""
    explorer.inputs["harmful"].value = str(tmp_path / "none.npy")
    assert "No such file" in explorer.error
    with pytest.raises(InvalidInputError, match="No such file"):
        OwnDataExplorer.show(static=True, pretrain="none.npy", harmful="none.npy")


def test_settings_reach_the_analysis():
    explorer = OwnDataExplorer(example="digits", ridge=0.1, goal=0.2, tolerance=10.0)
    direct = own_data(example="digits", ridge=0.1, goal=0.2, tolerance=10.0)
    assert explorer.result.costs == direct.costs
    assert explorer.result.ridge_limit == direct.ridge_limit
    assert explorer.result.pretrain.tolerance == direct.pretrain.tolerance


def test_the_reading_has_numbers_verdict_and_warnings():
    text = own_data_reading(own_data())
    for part in ("469.8", "360.2", "RIR ≤ 4.187", "falls as well", "235 × 8"):
        assert part in text
    digits = own_data_reading(own_data(example="digits"))
    assert "RIR ≤ ∞" in digits
    assert "more than 1,000" in digits
    assert digits.count("<li>") == 5


def test_the_table_holds_all_curves():
    result = own_data()
    table = own_data_table(result)
    ratio = table.query("quantity == 'ratio_H_immunized'")["value"]
    np.testing.assert_array_equal(ratio, result.probes.norm_ratio[3])
    np.testing.assert_array_equal(table.query("quantity == 'sigma_P'")["value"], result.pretrain.sigma)
    assert table["quantity"].nunique() == 6
