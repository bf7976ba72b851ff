"""What an audit found: one frozen record, written as strict JSON, and its verdict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from condnum.auditing.attacks import AttackSection
from condnum.auditing.lights import MEANING, class_lights, headline, lights_text, worst_light
from condnum.auditing.measures import LABEL_OF, PARETO, OwnProbes, TaskFacts, clauses_of, rows_with
from condnum.data.feature_pair import MISSING
from condnum.files import output_folder, write_json
from condnum.numbers import number, times
from condnum.probing.probe import slowdown_verdict
from condnum.page.tables import formula_html
from condnum.studies.frame.record import verdict_row
from condnum.theory.kappa import Clauses
from condnum.theory.limits import RirLimit
from condnum.theory.slowdown import LOST_FACTOR, slowdown_sentence

#: Name of the file.
AUDIT_FILE = "audit.json"


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """Everything an audit says about a pair of tasks and, where given, extractors."""

    benign: TaskFacts
    harmful: TaskFacts
    given: Sequence[str]  # names of the extractors that were given
    thetas: Mapping[str, NDArray[Any]]  # name -> (D, D_hid), closed forms included
    maps: Mapping[str, Any]  # name -> what attackers met, of those that were given
    rtol: float  # relative rank tolerance of K and H(θ), (D·eps)² of eigenvalues
    epsilon: float  # of the ridge convention
    limit: RirLimit  # compact
    ridge_limit: float  # bound on RIR in the ridge convention, unit scale
    kappa: pd.DataFrame  # of `kappa_table`
    measures: pd.DataFrame  # of `measures_table`
    probes: Mapping[str, OwnProbes]
    attack: AttackSection
    price: pd.DataFrame  # of `attacker_lights`: ridge regression on the benign task
    notes: Sequence[str]  # what was done to the data
    method: str = PARETO  # the closed form that is judged where none was given
    standardize: bool = False
    seed: int = 0

    def __repr__(self) -> str:
        """Return who gets through, then Definition 3.1, what it leaves out, and how slow probes become."""
        lines = [line for name in self.given or [self.extractor] for line in self.verdicts(name)]
        return "\n".join([*self.said, *lines, self.probe_sentence, *self.dropped])

    def _repr_html_(self) -> str:
        """Return the verdict as the report shows it."""
        return _CARD.render(found=self, label=label, MEANING=MEANING)

    @property
    def extractor(self) -> str:
        """The extractor that the page is about: the first one that was given, or else the Pareto front."""
        return [*self.given, self.method][0]

    @property
    def said(self) -> list[str]:
        """Who gets through each extractor, as the command prints it: headline, lights, price."""
        lines = []
        for name in self.given or [self.extractor]:
            table = self.lights_text(name)
            shown = [] if table.empty else [table.to_string(index=False)]
            lines += [self.headline(name), *shown, self.price_of(name), ""]
        return lines

    @property
    def attackers_said(self) -> list[str]:
        """All attackers on the first extractor, a line each."""
        table = lights_text(self.attacker_lights(self.extractor), names=True)
        return ["All attackers:", *table.to_string(index=False).splitlines(), ""] if len(table) else []

    def lights(self, extractor: str) -> pd.DataFrame:
        """Return the light of each class of attackers, see `class_lights`."""
        return class_lights(self.attacker_lights(extractor))

    def attacker_lights(self, extractor: str) -> pd.DataFrame:
        """Return the light of every attacker, see `lights.attacker_lights`."""
        return rows_with(self.attack.lights, extractor=extractor)

    def headline(self, extractor: str) -> str:
        """Say who gets through: the worst of the lights."""
        called, reason = label(extractor), f" Reason: {self.attack.reason}." * bool(self.attack.reason)
        own = (
            f"{called} was made from these rows: their labels correlate less with its features than chance "
            "allows, so attackers look stopped here. Audit it on rows that it was not made from. "
        )
        return own * (extractor in self.attack.own_rows) + headline(self.lights(extractor), called) + reason

    def lights_text(self, extractor: str) -> pd.DataFrame:
        """Return the lights of an extractor as text."""
        return lights_text(self.lights(extractor))

    def price_of(self, extractor: str) -> str:
        """Say what the extractor costs the benign task."""
        if self.price.empty:
            return "Price for the benign task: not known without its targets (--y-benign)."
        first = lights_text(rows_with(self.price, extractor=extractor)).iloc[0]
        score, slow = first.index[3], self.row(extractor, "compact")["benign_slowdown"]
        steps = "" if math.isnan(slow) else f"; gradient descent takes {times(slow)} steps"
        if math.isinf(slow):
            steps = "; gradient descent never gets as far as on raw features"
        return (
            f"Price for the benign task: {score} of ridge regression {first['on raw features']} → "
            f"{first[score]} (95 % interval {first['95 % interval']}, chance {first['chance']}){steps}."
        )

    @property
    def dropped(self) -> list[str]:
        """Which rows the verdict leaves out, as their entries are missing."""
        return [note for note in self.notes if MISSING in note]

    def row(self, extractor: str, convention: str, theta_scale: str = "unit") -> pd.Series:
        """Return a row of `measures`, in `compact` or `ridge`, at scale `unit` or `as_trained`."""
        where = {"extractor": extractor, "convention": convention, "theta_scale": theta_scale}
        return rows_with(self.measures, **where).iloc[0]

    def kappa_of(self, task: str, extractor: str, convention: str) -> pd.Series:
        """Return κ of the `benign` or `harmful` task's Hessian at an extractor, with its rank."""
        return rows_with(self.kappa, task=task, extractor=extractor, convention=convention).iloc[0]

    def clauses(self, extractor: str) -> dict[str, Clauses]:
        """Return Definition 3.1 clause by clause, by convention."""
        return {name: clauses_of(self.row(extractor, name)) for name in ("compact", "ridge")}

    def verdicts(self, extractor: str) -> list[str]:
        """Say per convention whether Definition 3.1 is met, with the ratios and both actual probes."""
        rows = (self.row(extractor, convention) for convention in ("compact", "ridge"))
        return [
            f"{label(extractor)}, {row['convention']} convention: Definition 3.1 is {row['verdict']}: "
            f"(i) = {row['harmful_ratio']:.4g}, (ii) = {row['benign_ratio']:.4g}, "
            f"RIR = {self.rir_words(extractor, row['convention'])}; "
            f"{self.probe_words(extractor)}."
            for row in rows
        ]

    def probe_words(self, extractor: str) -> str:
        """Return how many times the steps of raw features both actual probes take."""
        benign, harmful = (
            "not known without its targets" if of is None else number(of.slowdown)
            for of in self.probes[extractor]
        )
        return f"steps of the actual probes, × raw: benign {benign}, harmful {harmful}"

    @property
    def probe_sentence(self) -> str:
        """How the extractor slows the probes of the actual targets, or that this is not known."""
        met = any(clauses.met for clauses in self.clauses(self.extractor).values())
        return slowdown_verdict(met, *self.probes[self.extractor]) or slowdown_sentence(met, None, None)

    def rir_words(self, extractor: str, convention: str) -> str:
        """Return RIR and its limit."""
        row = self.row(extractor, convention)
        limit = row["rir_limit"]
        known = number(row["rir"])
        if math.isinf(limit):
            return f"{known}, without a finite limit"
        return known if math.isnan(limit) else f"{known} of at most {number(limit)}"

    @property
    def worst_light(self) -> str:
        """The worst light of all extractors that are judged: no verdict may look better."""
        names = self.given or [self.extractor]
        return worst_light(pd.concat([self.lights(name) for name in names]))

    def verdict_rows(self) -> list[dict[str, Any]]:
        """Return the rows of the table that the command prints: those at unit scale of θ."""
        rows = []
        for row in self.measures[self.measures["theta_scale"] == "unit"].to_dict("records"):
            verdict = {True: "yes", False: "no", None: "not known"}[clauses_of(row).met]
            lost = verdict == "yes" and float(row.get("benign_slowdown") or 0) > LOST_FACTOR
            ranks = f"{row['rank_benign']} and {row['rank_harmful']} of {self.benign.dimension}"
            shown = verdict_row(row["extractor"], row, verdict + ", benign task lost" * lost)
            rows.append({**shown, "rank of H_P and H_H": ranks})
        return rows

    def as_json(self) -> dict[str, Any]:
        """Return everything as values that strict JSON holds: infinities as words, NaN as null."""
        report = self.attack.report
        tables = ("table", "factors", "extractors", "skipped")
        attack = {**vars(self.attack), "report": report and {name: getattr(report, name) for name in tables}}
        verdict = [*self.verdicts(self.extractor), self.probe_sentence]
        thetas = {name: theta.shape for name, theta in self.thetas.items()}
        known = {name: value for name, value in vars(self).items() if name != "maps"}
        return strict({"verdict": verdict, **known, "attack": attack, "thetas": thetas})

    def save(self, folder: str | Path) -> list[str]:
        """Write audit.json into a folder; return the names of the files."""
        write_json(output_folder(folder) / AUDIT_FILE, self.as_json())
        return [AUDIT_FILE]


def label(name: str) -> str:
    """Return how an extractor is called."""
    return LABEL_OF.get(name, name)


_TEMPLATES = Environment(
    loader=PackageLoader("condnum.auditing", "."),
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
)
_TEMPLATES.filters |= {
    "count": "{:,d}".format,
    "formula_html": formula_html,
    "label": label,
    "number": number,
}
_CARD = _TEMPLATES.get_template("card.html.j2")


def strict(value: Any) -> Any:
    """Return a value that strict JSON holds: NaN becomes None, infinities become words, tables records."""
    if isinstance(value, pd.DataFrame):
        value = value.to_dict("records")
    elif isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    elif is_dataclass(value):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
