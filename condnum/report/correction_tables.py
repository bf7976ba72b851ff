"""Tables of theoretical corrections: one claim with its counter-example, and all of them."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from condnum.files import write_tables
from condnum.report.comparison import as_html
from condnum.teaching.correction import Correction

#: File that a run leaves, a row per correction.
CORRECTIONS_CSV = "corrections.csv"

_HEADINGS = {
    "place": "where",
    "claim": "what the paper says",
    "setting": "counter-example",
    "claimed": "by the claim",
    "computed": "computed",
    "correction": "what holds",
}


#: A letter (or ‖, RIR) with an index: `K_P`, `σ_θ,i`, `‖S‖_F`; not the underscore of `a_name`.
_INDEX = re.compile(
    r"((?<![A-Za-zΑ-ω_])[A-Za-zΑ-ω]|‖|RIR)_([A-Za-z0-9θ]+(?:,[a-z](?![a-z]))?)(?![A-Za-z0-9_])"
)


def correction_table(found: Sequence[Correction]) -> pd.DataFrame:
    """Return corrections as a table, without the raw numbers.

    Examples:
        >>> from condnum.teaching.corrections import theorem_4_1
        >>> correction_table([theorem_4_1()])[["key", "refuted"]].to_dict("records")
        [{'key': 'theorem-4-1', 'refuted': True}]
    """
    return pd.DataFrame(
        [{k: v for k, v in asdict(one).items() if k != "values"} for one in found],
        columns=["key", *_HEADINGS, "refuted"],
    )


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """Return the columns for a reader, escaped for HTML."""
    chosen = table[["place", "claim", "computed", "correction"]].rename(columns=_HEADINGS)
    return chosen.map(formula_html)


def formula_html(text: str) -> str:
    """Return plain text as HTML, `K_P` and `K_P^(-1/2)` with their indices and exponents.

    Examples:
        >>> formula_html("θ = K_P^(-1/2) < ‖S‖_F")
        'θ = K<sub>P</sub><sup>−1/2</sup> &lt; ‖S‖<sub>F</sub>'
        >>> formula_html("σ_θ,i u_iᵀq_j")
        'σ<sub>θ,i</sub> u<sub>i</sub>ᵀq<sub>j</sub>'
        >>> formula_html("RIR_θ0 of test_vit")
        'RIR<sub>θ0</sub> of test_vit'
    """
    lowered = _INDEX.sub(r"\1<sub>\2</sub>", html.escape(text))
    return re.sub(r"\^\(-([^)]*)\)", r"<sup>−\1</sup>", lowered)


def correction_html(one: Correction) -> str:
    """Return one correction as a table of two columns."""
    rows = [(title, formula_html(str(getattr(one, name)))) for name, title in _HEADINGS.items()]
    answer = "the claim is refuted" if one.refuted else "the numbers agree with the claim"
    return as_html(pd.DataFrame([*rows, ("verdict", f"<b>{answer}</b>")], columns=["", " "]))


def save(table: pd.DataFrame, folder: str | Path) -> list[str]:
    """Write the table."""
    return write_tables(folder, {CORRECTIONS_CSV: table})
