"""The audit as a study: in a notebook and from the command line, or as one call, `audit`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from condnum.arrays import TargetKind
from condnum.audit.attacks import TargetsLike, read_targets
from condnum.audit.intervals import FEWEST_REPLICATES
from condnum.audit.layers import RIR_TARGET, layer_names
from condnum.audit.measures import PARETO, ThetaLike, read_theta
from condnum.audit.net_images import NetImages
from condnum.audit.result import Audit
from condnum.audit.stages import AuditData, Stages
from condnum.data.digits import load_small_digits
from condnum.data.feature_pair import MISSING, open_pair
from condnum.data.feature_stream import FeaturesLike, as_stream
from condnum.errors import InvalidInputError
from condnum.files import atomic_write, sha256_file
from condnum.probing.race import AttackBudget
from condnum.progress import OnProgress
from condnum.studies.frame import Cell, Count, Study, at_least
from condnum.studies.frame.record import write_record
from condnum.theory.spectra import PUBLISHED_RIDGE


@dataclass(frozen=True)
class FeatureAudit(Study, name="audit"):
    """An audit of features in files or of a backbone; without any, of the embedded digits."""

    pretrain: str = ""
    harmful: str = ""
    theta: str = ""
    targets: str = ""
    pretrain_targets: str = ""
    kind: TargetKind = "auto"
    key: str = ""
    drop: str = ""
    standardize: bool = False
    backbone: str = ""
    pretrain_images: str = ""
    harmful_images: str = ""
    weights: str = "none"
    image_size: Count | None = None
    limit: Count | None = None
    layers: str = ""
    rir_target: float = RIR_TARGET
    save_theta: str = ""
    epsilon: float = PUBLISHED_RIDGE
    rtol: float | None = None
    bootstrap: int = 200
    attackers: bool = True
    seed: Annotated[int, at_least(0)] = 0
    scheduler: str = ""

    def check(self) -> None:
        """Refuse what cannot run, before anything is read."""
        for first, second in (("pretrain", "harmful"), ("pretrain_images", "harmful_images")):
            if bool(getattr(self, first)) != bool(getattr(self, second)):
                given, missing = (first, second) if getattr(self, first) else (second, first)
                raise InvalidInputError(
                    f"{given} was given without {missing}; an audit compares two tasks, so give both."
                )
        net, images = "--backbone", "--pretrain-images and --harmful-images"
        refused = {
            f"a backbone needs the images of both tasks: give {net}, {images}.":
                bool(self.backbone) != bool(self.pretrain_images),
            "give files of features, or a backbone with images, not both.": self.backbone and self.pretrain,
            f"layers {self.layers} need a backbone: give {net} with {images}.":
                self.layers and not self.backbone,
            **{f"{name} has no effect without a backbone; give {net}, {images}.": True
               for name in ("weights", "image_size", "limit")
               if not self.backbone and getattr(self, name) not in (None, "none")},
            f"key {self.key} has no effect on a backbone; leave it out.": self.backbone and self.key,
            f"--save-theta {self.save_theta} must end in .npy.":
                self.save_theta and Path(self.save_theta).suffix != ".npy",
            f"rir_target must be above 1, got {self.rir_target}.": not self.rir_target > 1,
            "rir_target has no effect without layers; give --layers.":
                not self.layers and self.rir_target != RIR_TARGET,
            f"epsilon must be positive, got {self.epsilon}.": self.epsilon <= 0,
            f"rtol must lie in [0, 1), got {self.rtol}.": not 0 <= (self.rtol or 0) < 1,
            f"bootstrap must be 0 (none) or at least {FEWEST_REPLICATES} replicates, got {self.bootstrap}.":
                self.bootstrap != 0 and self.bootstrap < FEWEST_REPLICATES,
        }  # fmt: skip
        for message, wrong in refused.items():
            if wrong:
                raise InvalidInputError(message)

    def load(self) -> Any:
        """Open the files, whose rows are read later; features of a backbone are kept in the user cache."""
        streams: list[Any] = [self.pretrain, self.harmful]
        labels: list[Any] = [None, None]
        net, notes = None, list[str]()
        if self.backbone:
            net = self._net()
            if self.layers:
                layer_names(net.backbone.model, self.layers)  # are there such?
            streams, labels, notes = net.features()
        elif not self.pretrain:
            digits = load_small_digits()
            X, y = np.asarray(digits.images).reshape(len(digits), -1), np.asarray(digits.labels)
            low = y < 5
            streams = [as_stream(X[low], name="digits 0-4"), as_stream(X[~low], name="digits 5-9")]
            labels = [y[low], y[~low]]
        data = self.open(
            streams[0],
            streams[1],
            theta=self.theta or None,
            targets=self.targets or labels[1],
            pretrain_targets=self.pretrain_targets or labels[0],
        )
        data.net, data.notes = net, [*data.notes, *notes]
        return data

    def _net(self) -> NetImages:
        """Make the backbone and open its images."""
        return NetImages.open(
            self.backbone, self.pretrain_images, self.harmful_images, weights=self.weights,
            image_size=self.image_size, limit=self.limit, seed=self.seed,
        )  # fmt: skip

    def open(
        self,
        pretrain: FeaturesLike,
        harmful: FeaturesLike,
        theta: ThetaLike | None,
        **targets: TargetsLike | None,
    ) -> AuditData:
        """Open features, an extractor and targets, and refuse those that do not fit; see `audit`."""
        P, H, notes = open_pair(pretrain, harmful, key=self.key, drop=self.drop)
        streams = {
            name: as_stream(value, name=name, vector=True)
            for name, value in targets.items()
            if value is not None
        }
        answers: dict[str, Any] = {
            name: read_targets(stream, kind=self.kind, name=name) for name, stream in streams.items()
        }
        notes += [note for stream in streams.values() for note in stream.notes]
        if self.kind != "auto" and not answers:
            raise InvalidInputError(f"kind {self.kind} has no effect without targets; give targets.")
        return AuditData(P, H, notes, None if theta is None else read_theta(theta, P.dimension), **answers)

    def cells(self, data: Any) -> list[Cell]:
        """Return none: an audit is computed in memory."""
        return []

    def run(  # type: ignore[override]
        self, data: Any = None, *, on_progress: OnProgress | None = None
    ) -> Audit:
        """Audit in memory; without spectra there is nothing to show, a later stage may fail."""
        stages = Stages(self, self.load() if data is None else data, on_progress)
        audit = stages.audit(go_on=True)
        if self.save_theta:
            with atomic_write(Path(self.save_theta)) as temporary, temporary.open("wb") as stream:
                np.save(stream, stages.found[PARETO])
        return audit

    def save(self, found: Audit, folder: str | Path) -> list[str]:
        """Write an audit and the record of its run into a folder; return the names of the files."""
        places = "pretrain", "harmful", "theta", "targets", "pretrain_targets"
        files = [Path(getattr(self, name)) for name in places if getattr(self, name)]
        checksums = {file.name: sha256_file(file) for file in files}
        said = [note for note in found.warnings if "drop=" in note or MISSING in note]
        return [
            *found.save(folder),
            write_record(folder, checksums, warnings=said, verdicts=found.verdict_rows()),
        ]


def audit(
    pretrain: FeaturesLike,
    harmful: FeaturesLike,
    *,
    theta: ThetaLike | None = None,
    targets: TargetsLike | None = None,
    pretrain_targets: TargetsLike | None = None,
    kind: TargetKind = "auto",
    key: str = "",
    drop: str = "",
    standardize: bool = False,
    epsilon: float = PUBLISHED_RIDGE,
    rtol: float | None = None,
    bootstrap: int = 200,
    attackers: bool = True,
    budget: AttackBudget | None = None,
    seed: int = 0,
    scheduler: str = "",
    threads: int | None = None,
) -> Audit:
    """Audit files, arrays, tensors, data frames or streams; `condnum audit --help` explains the options.

    Columns with names are matched by name. `budget` is what each attacker may spend.

    Raises:
        InvalidInputError: Columns that do not fit, or an option that has no effect beside the others.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(200, 4))
        >>> found = audit(rows, rows[:100] * [1, 1, 1, 3], theta=np.diag([1, 1, 1, 2.0]), bootstrap=0)
        >>> bool(found.row(found.main, "compact")["harmful_ratio"] > 1), found.clause_c["theta"].kept
        (True, True)
    """
    study = FeatureAudit(
        kind=kind, key=key, drop=drop, standardize=standardize, epsilon=epsilon, rtol=rtol,
        bootstrap=bootstrap, attackers=attackers, seed=seed, scheduler=scheduler,
    )  # fmt: skip
    data = study.open(pretrain, harmful, theta, targets=targets, pretrain_targets=pretrain_targets)
    if budget is not None and (data.targets is None or not attackers):
        raise InvalidInputError("budget has no effect without attackers; give targets, and attackers=True.")
    data.budget, data.threads = budget, threads
    return Stages(study, data).audit(go_on=False)
