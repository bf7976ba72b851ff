"""The audit as one call, `audit`, and as the study of the command: open → measure → words."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from condnum.arrays import TargetKind, resolve_device
from condnum.auditing import measures
from condnum.auditing.attacks import AttackSection, attack_section, audit_budget, eraser_of
from condnum.auditing.extractors import ThetaLike, read_extractors
from condnum.auditing.intervals import FEWEST_REPLICATES, Intervals, bootstrap
from condnum.auditing.layers import RIR_TARGET, layer_audit, layer_names
from condnum.auditing.lights import NO_LIGHTS
from condnum.auditing.measures import ERASED, PARETO, TaskSpectra
from condnum.auditing.net_images import NetImages
from condnum.auditing.result import Audit
from condnum.data.digits import load_small_digits
from condnum.data.feature_pair import MISSING, look_at, open_pair
from condnum.data.feature_stream import FeaturesLike, FeatureStream, TargetsLike, as_stream, read_targets
from condnum.errors import InvalidInputError
from condnum.files import atomic_write, sha256_file
from condnum.probing.race import AttackBudget
from condnum.progress import OnProgress, report_event
from condnum.studies.frame import Cell, Count, Study, at_least
from condnum.studies.frame.record import write_record
from condnum.theory.ceiling import max_rir_immunizer, ridge_convention_ceiling, rir_ceiling
from condnum.theory.covariances import CovarianceRange
from condnum.theory.pareto import pareto_immunizer
from condnum.theory.spectra import PUBLISHED_RIDGE, default_rtol, squared_rtol


def audit(
    pretrain: FeaturesLike,
    harmful: FeaturesLike,
    *,
    theta: ThetaLike | Mapping[str, ThetaLike] | None = None,
    y_benign: TargetsLike | None = None,
    y_harmful: TargetsLike | None = None,
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
    threads: int | None = None,
) -> Audit:
    """Audit the features of a pre-training and a harmful task, and what extractors make of them.

    Args:
        pretrain: `(N_P, D)` features of D_P: an array, tensor, data frame or file.
        harmful: `(N_H, D)` features of D_H; columns with names are matched by name.
        theta: Extractor `(D, D_hid)`: an array, linear layers, an `Immunizer`, an `Eraser` or a file of one
            of them; or a dictionary of named ones. Rows with names are matched to columns. Attackers meet
            what `transform` or the layers return; κ is that of the matrix. Without an extractor, the closed
            form `pareto` is judged.
        y_benign: `(N_P,)` targets of D_P, on which clause (c) depends where θ loses rank.
        y_harmful: `(N_H,)` targets of D_H, which the attackers learn.
        kind: What targets are: `auto`, `regression` or `classification`.
        key: Name of the array to read from archives, or two names with a comma.
        drop: Names of columns to leave out, with commas.
        standardize: Scale the columns of each task to mean 0 and standard deviation 1.
        epsilon: ε of the ridge convention, in the units of K.
        rtol: Relative rank tolerance of K; default that of the stored type.
        bootstrap: Replicates of the bootstrap; 0 for no intervals. Beyond 256 features D it draws 256²/D² of
            them, at least 20; none where a resample's distinct rows (63 %) are fewer than the rank.
        attackers: Run the attack panel; of more than 16 classes, on 16 random mixtures of their columns, and
            beyond 256 features with fewer rates and in float32; the report says how.
        budget: What each attacker may spend.
        seed: Of all random numbers.
        threads: At a time in the bootstrap; default one per core.

    Returns:
        The audit, which prints as its verdict.

    Raises:
        InvalidInputError: Columns that do not fit, or an option that has no effect beside the others.
        RankError: θ or a task's features are zero.

    Examples:
        >>> rows = np.random.default_rng(0).normal(size=(200, 4))
        >>> found = audit(rows, rows[:100] * [1, 1, 1, 3], theta=np.diag([1, 1, 1, 2.0]), bootstrap=0)
        >>> bool(found.row("theta", "compact")["harmful_ratio"] > 1)
        True
    """
    settings = FeatureAudit(
        kind=kind, key=key, drop=drop, standardize=standardize, epsilon=epsilon, rtol=rtol,
        bootstrap=bootstrap, attackers=attackers, seed=seed,
    )  # fmt: skip
    data = settings.open(pretrain, harmful, theta, y_benign=y_benign, y_harmful=y_harmful)
    if budget is not None and (data.y_harmful is None or not attackers):
        raise InvalidInputError("budget has no effect without attackers; give y_harmful, and attackers=True.")
    return measure(settings, data, budget=budget, threads=threads)


@dataclass(eq=False)
class AuditData:
    """What an audit reads, opened."""

    pretrain: FeatureStream
    harmful: FeatureStream
    notes: Sequence[str]  # what was done to match their columns
    thetas: Mapping[str, NDArray[Any]]  # the matrices of the extractors that were given
    maps: Mapping[str, Any]  # what attackers meet of each
    y_benign: NDArray[Any] | None = None
    y_harmful: NDArray[Any] | None = None
    net: NetImages | None = None  # where the features are those of a backbone


@dataclass(frozen=True)
class FeatureAudit(Study, name="audit"):
    """An audit of features in files or of a backbone; without any, of the embedded digits."""

    pretrain: str = ""
    harmful: str = ""
    theta: str = ""
    y_harmful: str = ""
    y_benign: str = ""
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
    method: Literal["pareto", "max_rir", "erase"] = "pareto"
    save_theta: str = ""
    epsilon: float = PUBLISHED_RIDGE
    rtol: float | None = None
    bootstrap: int = 200
    attackers: bool = True
    seed: Annotated[int, at_least(0)] = 0

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
            f"--save-theta {self.save_theta} must end in .npy.":
                self.save_theta and self.method != ERASED and Path(self.save_theta).suffix != ".npy",
            f"--save-theta {self.save_theta} must end in .safetensors: an eraser is a map, "
            "and its one matrix keeps what it erases in its round-off.":
                self.save_theta and self.method == ERASED and Path(self.save_theta).suffix != ".safetensors",
            f"method {self.method} has no effect with theta; leave one of them out.":
                self.theta and self.method != PARETO,
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
            net = NetImages.open(
                self.backbone, self.pretrain_images, self.harmful_images, weights=self.weights,
                image_size=self.image_size, limit=self.limit, seed=self.seed,
            )  # fmt: skip
            if self.layers:
                layer_names(net.backbone.model, self.layers)
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
            y_benign=self.y_benign or labels[0],
            y_harmful=self.y_harmful or labels[1],
        )
        data.net, data.notes = net, [*data.notes, *notes]
        return data

    def open(
        self, pretrain: FeaturesLike, harmful: FeaturesLike, theta: ThetaLike, **targets: TargetsLike | None
    ) -> AuditData:
        """Open features, extractors and targets, and refuse those that do not fit; see `audit`."""
        P, H, notes = open_pair(pretrain, harmful, key=self.key, drop=self.drop)
        answers: dict[str, Any] = {}
        for name, value in targets.items():
            if value is not None:
                answers[name], said = read_targets(value, kind=self.kind, name=name)
                notes.extend(said)
        if self.kind != "auto" and not answers:
            raise InvalidInputError(f"kind {self.kind} has no effect without targets; give y_harmful.")
        columns = next((stream.columns for stream in (P, H) if stream.named), None)
        return AuditData(P, H, notes, *read_extractors(theta, P.dimension, columns), **answers)

    def cells(self, data: Any) -> list[Cell]:
        """Return none: an audit is computed in memory."""
        return []

    def run(  # type: ignore[override]
        self, data: Any = None, *, on_progress: OnProgress | None = None
    ) -> Audit:
        """Audit in memory."""
        found = measure(self, self.load() if data is None else data, on_progress=on_progress)
        if self.save_theta:
            with atomic_write(Path(self.save_theta)) as temporary:
                if self.method == ERASED:
                    found.maps[ERASED].save(temporary)
                else:
                    with temporary.open("wb") as stream:
                        np.save(stream, found.thetas[self.method])
        return found

    def save(self, found: Audit, folder: str | Path) -> list[str]:
        """Write an audit and the record of its run into a folder; return the names of the files."""
        places = "pretrain", "harmful", "theta", "y_harmful", "y_benign"
        files = [Path(getattr(self, name)) for name in places if getattr(self, name)]
        checksums = {file.name: sha256_file(file) for file in files}
        said = [note for note in found.warnings if "drop=" in note or MISSING in note]
        return [
            *found.save(folder),
            write_record(
                folder,
                checksums,
                seeds=[self.seed],
                warnings=said,
                verdicts=found.verdict_rows(),
                said=[*found.said, *found.attackers_said],
                parameters={of.name: getattr(self, of.name) for of in fields(self)},
            ),
        ]


def measure(
    settings: FeatureAudit,
    data: AuditData,
    *,
    budget: AttackBudget | None = None,
    threads: int | None = None,
    on_progress: OnProgress | None = None,
) -> Audit:
    """Read the rows once and measure what they and the extractors allow."""
    epsilon, seed, seconds = settings.epsilon, settings.seed, dict[str, float]()
    total = 2 + bool(settings.bootstrap) + settings.attackers + bool(settings.layers)

    def stage(name: str, compute: Callable[[], Any]) -> Any:
        """Announce a stage, and compute it in its time."""
        event = {"done": len(seconds), "total": total, "failures": 0, "stage": name}
        report_event(**event)
        if on_progress is not None:
            on_progress(event)
        started = time.perf_counter()
        found = compute()
        seconds[name] = time.perf_counter() - started
        return found

    pair = stage(
        "rows",
        lambda: look_at(
            data.pretrain, data.harmful, data.notes,
            standardize=settings.standardize, y_benign=data.y_benign, y_harmful=data.y_harmful, seed=seed,
        ),
    )  # fmt: skip
    tasks = P, H = pair.pretrain, pair.harmful
    given, maps, half = dict(data.thetas), dict(data.maps), settings.method == ERASED
    if half:
        maps[ERASED] = eraser_of(H, data.y_harmful, seed, half=half)
        given[ERASED] = np.asarray(maps[ERASED].theta_)

    def spectra() -> dict[str, Any]:
        D = P.stream.dimension
        rtol = settings.rtol
        if rtol is None:
            rtol = squared_rtol(D, max(task.stored_eps for task in tasks))
        least = min(rtol, default_rtol(D))
        finest = (
            CovarianceRange.of(P.covariance, rtol=least, name="K_P"),
            CovarianceRange.of(H.covariance, rtol=least, name="K_H"),
        )
        ranges = CovarianceRange.of(finest[0], rtol=rtol), CovarianceRange.of(finest[1], rtol=rtol)
        thetas = {
            **given,
            measures.MAX_RIR: np.asarray(max_rir_immunizer(P.covariance, H.covariance, rtol=rtol)),
            PARETO: np.asarray(pareto_immunizer(*ranges)),
        }
        # What float32 rows cannot tell is cut from K; the rest of H(θ) is known in float64.
        compared = TaskSpectra.of(*ranges, thetas, rtol=least if settings.rtol is None else rtol)
        probes = measures.own_probes(thetas, ranges, tasks)
        gaps = {name: measures.loss_gap(theta, ranges[0], P) for name, theta in thetas.items()}
        return {
            "rtol": rtol,
            "thetas": thetas,
            "probes": probes,
            "pretrain": measures.task_facts("D_P", P, rtol),
            "harmful": measures.task_facts("D_H", H, rtol),
            "ceiling": rir_ceiling(*ranges, rtol=rtol),
            "ridge_limit": ridge_convention_ceiling(*ranges, ridge=epsilon, rtol=rtol),
            "kappa": measures.kappa_table(compared, epsilon=epsilon),
            "measures": measures.measures_table(compared, epsilon=epsilon, gaps=gaps, probes=probes),
            "rtol_sweep": measures.rtol_table(finest, thetas, default=rtol),
            "epsilon_sweep": measures.epsilon_table(compared, epsilon=epsilon),
        }

    known = stage("spectra", spectra)
    thetas, rtol = known["thetas"], known["rtol"]
    intervals: Intervals | str = "it was switched off"
    attack, layers, price = None, None, NO_LIGHTS
    if settings.bootstrap:
        intervals = stage(
            "bootstrap",
            lambda: bootstrap(
                tasks, thetas, rtol=rtol, epsilon=epsilon, seed=seed, threads=threads,
                replicates=settings.bootstrap, ranks=(known["pretrain"].rank, known["harmful"].rank),
            ),
        )  # fmt: skip
    table = intervals.table if isinstance(intervals, Intervals) else None
    known["measures"] = measures.doubted(known["measures"], known["rtol_sweep"], table, rtol)
    attacked = maps or {settings.method: thetas[settings.method]}
    spend = budget or audit_budget(H.sample.shape[1], seed)
    if settings.attackers:
        attack = stage(
            "attackers",
            lambda: attack_section(
                H, data.y_harmful, attacked, erase=not given, half=half, seed=seed,
                budget=spend,
                on_attack=lambda extractor, attacker: report_event(stage=f"{attacker} on {extractor}"),
            ),
        )  # fmt: skip
        with suppress(InvalidInputError):  # targets without a linear part have no price
            price = attack_section(
                P, data.y_benign, attacked, erase=False, seed=seed, budget=spend, attackers=["closed_form"]
            ).lights
    if settings.layers and data.net is not None:
        net = data.net
        layers = stage(
            "layers",
            lambda: layer_audit(
                net.backbone.model.to(resolve_device("auto")), net.batches(0), net.batches(1),
                settings.layers, epsilon=epsilon, rtol=settings.rtol, target=settings.rir_target,
                keep_features=False,
            ),
        )  # fmt: skip
    return Audit(
        **known,
        given=tuple(given),
        maps=maps,
        method=settings.method,
        price=price,
        intervals=None if isinstance(intervals, str) else intervals,
        no_intervals=intervals if isinstance(intervals, str) else "",
        attack=attack or AttackSection(None, "the panel was switched off"),
        columns=pair.columns,
        notes=pair.notes,
        seconds=seconds,
        epsilon=epsilon,
        standardize=settings.standardize,
        seed=seed,
        layers=layers,
    )
