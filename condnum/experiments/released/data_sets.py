"""What the audit runs on: house prices, the embedded table, or one pair of digits, with their settings."""

from __future__ import annotations

from dataclasses import dataclass, replace

from condnum.data import Digits, TaskPair, load_diabetes_tasks, load_house_prices, load_mnist_images
from condnum.data.embedded import load_small_digits
from condnum.errors import InvalidInputError, UnknownNameError
from condnum.experiments import digit_config
from condnum.experiments.digit_config import read_pair
from condnum.experiments.released.batches import updates_per_epoch
from condnum.experiments.released.switches import SWITCHES, ProtocolSwitches
from condnum.methods import NAMED_SETTINGS, DescentSettings
from condnum.sweep import DataReference

#: Rows of a mini-batch of the release.
BATCH = 64

#: Rows of each task on which the release trains on house prices; the 100 after them are its validation set.
FIRST_ROWS = 200

#: Rows of the supervised loss's balanced sample, as the digit-pair experiment has them.
LOSS_ROWS = digit_config.DigitPairsConfig().loss_rows

#: Data set by the word that a user types.
_KINDS = {"house-prices": "house-prices", "embedded": "diabetes", "mnist": "mnist", "digits": "digits-8x8"}

NAMES = ("house-prices", "embedded", "mnist:4-7", "digits:4-7")

_COMMON = DescentSettings(schedule="constant", weights="fixed", batch_size=BATCH, record_every=0)

#: Table 4 and the release's configuration: η, λ_P, λ_H; Adam.
_RELEASED = {
    "tables": _COMMON.with_overrides(learning_rate=5e-3, lambda_pretrain=100.0, lambda_harmful=1e7),
    "digits": _COMMON.with_overrides(learning_rate=1e-3, lambda_pretrain=1.0, lambda_harmful=5e7),
}


@dataclass(frozen=True)
class AuditData:
    """Which data, and what is known of them before they are loaded."""

    name: str  # house-prices, diabetes, mnist or digits-8x8
    source: str  # what the loader is told
    pair: tuple[int, int] | None = None  # (pretrain, harmful) digits

    @classmethod
    def parse(cls, text: str, source: str = "auto") -> AuditData:
        """Read what a user types.

        Examples:
            >>> AuditData.parse("mnist:4-7").pair
            (4, 7)
        """
        kind, _, digits = text.partition(":")
        if kind not in _KINDS:
            raise UnknownNameError("data set of the audit", text, NAMES)
        name = _KINDS[kind]
        if (kind in ("mnist", "digits")) != bool(digits):
            raise InvalidInputError(
                f"data '{text}': digits come with a pair, as in mnist:4-7, tables without one."
            )
        if name in ("diabetes", "digits-8x8"):
            if source not in ("auto", "embedded"):
                raise InvalidInputError(f"{text} is embedded and has no source '{source}': leave it out.")
            source = "embedded"
        pair = read_pair(digits) if digits else None
        if pair is not None and pair[0] == pair[1]:
            raise InvalidInputError(f"pair '{digits}' is none: give two different digits from 0 to 9.")
        return cls(name, source, pair)

    @property
    def label(self) -> str:
        """What a user types for these data."""
        kind = next(word for word, name in _KINDS.items() if name == self.name)
        return kind if self.pair is None else f"{kind}:{self.pair[0]}-{self.pair[1]}"

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches that mean anything here, in the order in which they are turned."""
        without = {
            "house-prices": {"labels", "regularizer_dimension"},
            "diabetes": {"labels", "regularizer_dimension", "encoders"},
        }.get(self.name, {"encoders", "normalise", "rows"})
        return tuple(name for name in SWITCHES if name not in without)

    @property
    def default_epochs(self) -> tuple[int, ...]:
        """Epochs of the release at which a waterfall starts, unless the user says otherwise."""
        return (10, 100) if self.pair is None else (1,)

    def load(self) -> TaskPair | Digits:
        """Load the data as the corrected protocol has them."""
        if self.name == "house-prices":
            return load_house_prices(self.source, features="published")
        if self.name == "diabetes":
            return load_diabetes_tasks(features="published")
        return load_mnist_images(self.source) if self.name == "mnist" else load_small_digits()

    def reference(self, data: TaskPair | Digits) -> DataReference:
        """Return the reference by which a worker finds the data."""
        return DataReference.of(data, self.source)

    def updates(self, data: TaskPair | Digits, epochs: int) -> int:
        """Return how many updates so many epochs of the release are.

        The number is that of the release's own loaders, whatever the other switches are, so that
        turning `rows` or `covariance` does not change the budget at the same time.
        """
        if isinstance(data, TaskPair):
            rows = (min(FIRST_ROWS, data.rows_pretrain), min(FIRST_ROWS, data.rows_harmful))
        else:
            assert self.pair is not None  # digits come with a pair
            rows = (data.smaller_count(*self.pair),) * 2
        return epochs * updates_per_epoch(*rows, BATCH)

    def settings(self, switches: ProtocolSwitches, data: TaskPair | Digits) -> DescentSettings:
        """Return how a setting of the switches descends.

        Examples:
            >>> data = AuditData.parse("embedded")
            >>> data.settings(ProtocolSwitches(), data.load()).describe(["well", "ill"])
            '30 steps of adam, η = 0.005 (constant), 64 rows a step, λ_P = 100, λ_H = 1e+07'
        """
        ours = self.registered
        chosen = _RELEASED["tables" if self.pair is None else "digits"]
        if switches.covariance == "full":
            chosen = replace(chosen, batch_size=None)
        if switches.weights == "balanced":
            chosen = replace(chosen, weights="balanced", ratio=ours.ratio, loss_weight=ours.loss_weight)
        if switches.step_size == "cosine":
            chosen = replace(chosen, learning_rate=ours.learning_rate, schedule=ours.schedule)
        if switches.epochs is None:
            return replace(chosen, steps=ours.steps)
        return replace(chosen, steps=self.updates(data, switches.epochs))

    @property
    def ridges(self) -> tuple[float, float]:
        """ε of the release's regularised solve, of R_well and R_ill, in units of the mini-batch's XᵀX."""
        return (1.0, 1.0) if self.pair is None else (1.0, 1e-7)

    @property
    def registered(self) -> DescentSettings:
        """The fixed settings of `ours` that were searched on these data."""
        return NAMED_SETTINGS[self.name]
