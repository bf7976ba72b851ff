"""The audit as its notebook and `condnum audit` run it: options as text, an embedded example without any."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from condnum.audit.clock import STAGES, OnStage
from condnum.audit.full_audit import FeaturesLike, audit
from condnum.audit.image_features import backbone_features
from condnum.audit.result import Audit
from condnum.audit.targets import Kind, TargetsLike
from condnum.data.embedded import load_small_digits
from condnum.data.feature_stream import array_stream
from condnum.data.resolver import user_cache
from condnum.errors import InvalidInputError
from condnum.extras import require


@dataclass(frozen=True)
class Options:
    """What is audited, and how; empty texts are options that were not given.

    Examples:
        >>> Options(pretrain="P.npy")
        Traceback (most recent call last):
            ...
        condnum.errors.InvalidInputError: pretrain was given without harmful: an audit compares two tasks.
    """

    pretrain: str = ""
    harmful: str = ""
    theta: str = ""
    theta_0: str = ""
    theta_i: str = ""
    targets: str = ""
    pretrain_targets: str = ""
    kind: Kind = "auto"
    key: str = ""
    drop: str = ""
    standardise: bool = False
    backbone: str = ""
    pretrain_images: str = ""
    harmful_images: str = ""
    weights: str = ""
    ridge: float = 1e-6
    rtol: float = 0.0
    replicates: int = 200
    attackers: bool = True
    seed: int = 0
    scheduler: str = ""
    max_dimension: int = 20_000

    def __post_init__(self) -> None:
        for first, second in (("pretrain", "harmful"), ("pretrain_images", "harmful_images")):
            given = [name for name in (first, second) if getattr(self, name)]
            if len(given) == 1:
                missing = second if given[0] == first else first
                raise InvalidInputError(
                    f"{given[0]} was given without {missing}: an audit compares two tasks."
                )
        if bool(self.backbone) != bool(self.pretrain_images):
            raise InvalidInputError(
                "a backbone and the images of both tasks belong together: give --backbone, --pretrain-images "
                "and --harmful-images."
            )
        if self.backbone and self.pretrain:
            raise InvalidInputError("give files of features, or a backbone with images, not both.")


#: The stage that is told when an audit is whole.
FINISHED = "finished"

#: Names of the notebook's parameters that are options.
NAMES = tuple(field.name for field in fields(Options))


def run(options: Options, *, on_stage: OnStage | None = None) -> Audit:
    """Run an audit from options; features of a backbone are kept in the user cache."""
    P: FeaturesLike = options.pretrain
    H: FeaturesLike = options.harmful
    y: TargetsLike | None = options.targets or None
    y_P: TargetsLike | None = options.pretrain_targets or None
    if options.backbone:
        found = backbone_features(
            options.backbone, options.pretrain_images, options.harmful_images,
            weights=options.weights, cache=user_cache() / "features", seed=options.seed,
        )  # fmt: skip
        P, H = found.pretrain, found.harmful
        y, y_P = options.targets or found.harmful_labels, options.pretrain_targets or found.pretrain_labels
    elif not options.pretrain:
        digits = load_small_digits()
        X, labels = np.asarray(digits.images).reshape(len(digits.labels), -1), np.asarray(digits.labels)
        P = array_stream(X[labels < 5], name="digits 0-4")
        H = array_stream(X[labels >= 5], name="digits 5-9")
        y, y_P = options.targets or labels[labels >= 5], options.pretrain_targets or labels[labels < 5]
    found_audit = audit(
        P, H, theta=options.theta or None, theta_0=options.theta_0 or None, theta_i=options.theta_i or None,
        targets=y, pretrain_targets=y_P, kind=options.kind, key=options.key, drop=options.drop,
        standardise=options.standardise, ridge=options.ridge, rtol=options.rtol or None,
        replicates=options.replicates, attackers=options.attackers, seed=options.seed,
        scheduler=options.scheduler, max_dimension=options.max_dimension, on_stage=on_stage,
    )  # fmt: skip
    if on_stage is not None:
        on_stage(FINISHED, 0, None)
    return found_audit


def stage_line(*, quiet: bool = False) -> OnStage | None:
    """Return a callback for `on_stage` that keeps one line of a notebook up to date."""
    if quiet:
        return None
    display = require("IPython.display", "notebooks")
    handle = display.display(display.Markdown("starting …"), display_id=True)

    def tell(stage: str, done: int, total: int | None) -> None:
        """Show how far the audit is."""
        if handle is not None:
            handle.update(display.Markdown(stage_words(stage, done, total)))

    return tell


def stage_words(stage: str, done: int, total: int | None) -> str:
    """Return how far an audit is, in one line.

    Examples:
        >>> stage_words("bootstrap", 50, 200)
        '*Stage 6 of 7: bootstrap, 50 of 200*'
    """
    if stage == FINISHED:
        return ""
    place = f"Stage {STAGES.index(stage) + 1} of {len(STAGES)}: {stage}" if stage in STAGES else stage
    return f"*{place}, {done:,d} of {total:,d}*" if total else f"*{place}*"
