"""One cell of the deep-net experiment: a backbone, a seed and a method → a model file and what it measures.

θ₀ is a cell too (`initial`): it is made once for a backbone and a seed, and its features are kept for
the methods that start from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from condnum.deep.accuracy import head_accuracy
from condnum.deep.backbone import Backbone
from condnum.deep.backbone_file import load_backbone, save_backbone
from condnum.deep.convex import convex_probe
from condnum.deep.feature_cache import cached_features
from condnum.deep.features import Features
from condnum.deep.image_data import ImageData
from condnum.deep.probe import probe_accuracy
from condnum.deep.rir_features import RirEstimate, RirTheta0, rir_from_features
from condnum.deep.training.immunization import immunize_backbone
from condnum.deep.training.settings import DeepSettings
from condnum.experiments.deep_config import DeepConfig
from condnum.experiments.deep_tasks import DeepTasks, open_tasks, task_transform
from condnum.experiments.deep_theta0 import make_theta_0
from condnum.sweep import CellPlan, CellResult, cached

#: Method of the cell that makes θ₀.
INITIAL = "initial"

#: Measured in both; they can disagree.
CONVENTIONS = ("compact", "ridge")

#: How often the groups of Eq. 17 are drawn, and how far apart the seeds are (a prime): the first draw is
#: reported, the others show how much of it is luck.
DRAWS = 5
DRAW_STRIDE = 1_000_003


@dataclass(frozen=True)
class FeatureSets:
    """Features of one model: each set of images goes through the net once."""

    pretrain: Features  # of D_P's training images, those of the groups of Eq. 17
    pretrain_test: Features
    harmful: Features  # of D_H's training images
    harmful_test: Features


@dataclass(frozen=True)
class DeepCells:
    """Computes cells; travels to worker processes."""

    config: DeepConfig
    folder: Path

    def __call__(self, plan: CellPlan) -> CellResult:
        """Make the model of a cell and measure it."""
        tasks = cached(("deep-tasks", self.config), lambda: open_tasks(self.config).in_memory())
        if plan.payload["method"] == INITIAL:
            return self._initial(plan, tasks)
        return self._immunized(plan, tasks)

    def model_file(self, key: str) -> Path:
        """Return where the model of a cell lies, by the cell's key."""
        return self.folder / "models" / f"{key[:32]}.safetensors"

    def _initial(self, plan: CellPlan, tasks: DeepTasks) -> CellResult:
        """Make θ₀ and measure it: its ratios are 1 by definition."""
        name, seed = plan.payload["backbone"], plan.payload["seed"]
        checkpoint = self._checkpoint(plan)
        theta_0, made = make_theta_0(self.config, tasks, name, seed, checkpoint)
        file = self._save(theta_0, plan)
        features = self._features(load_backbone(file), tasks, seed, keep=True)
        row: dict[str, Any] = {
            "steps": 0,
            "best_step": 0,
            "seconds": 0.0 if made is None else made.seconds,
            "stop_reason": "as loaded" if made is None else "trained",
        }
        history = pd.DataFrame() if made is None else made.history.add_prefix("pretraining.")
        unreadable = () if made is None else made.unreadable
        result = self._measured(plan, theta_0, features, features, row, history, [], unreadable)
        checkpoint.unlink(missing_ok=True)
        return result

    def _immunized(self, plan: CellPlan, tasks: DeepTasks) -> CellResult:
        """Immunize θ₀ by a method and measure θ_I beside it."""
        payload, checkpoint = plan.payload, self._checkpoint(plan)
        theta_0 = load_backbone(self.model_file(payload["start"]))
        transform = task_transform(self.config, tasks, theta_0)
        done = immunize_backbone(
            theta_0,
            tasks.pretrain,
            tasks.harmful,
            method=payload["method"],
            settings=DeepSettings(**plan.settings),
            validation=tasks.pretrain_held,
            validation_H=tasks.harmful_held,
            transform_P=transform,
            transform_H=transform,
            seed=payload["seed"],
            device=self.config.device,
            checkpoint=checkpoint,
            workers=self.config.workers,
        )
        before = self._features(theta_0, tasks, payload["seed"], keep=True)
        after = self._features(load_backbone(self._save(done.theta_I, plan)), tasks, payload["seed"])
        row: dict[str, Any] = {
            "steps": done.steps,
            "best_step": done.best_step,
            "seconds": done.seconds,
            "stop_reason": done.stop_reason,
            **{f"weight.{name}": value for name, value in done.part_weights.items()},
        }
        result = self._measured(
            plan, done.theta_I, before, after, row, done.history.add_prefix("history."), done.warnings,
            done.unreadable,
        )  # fmt: skip
        checkpoint.unlink(missing_ok=True)
        return result

    def _measured(
        self,
        plan: CellPlan,
        theta: Backbone,
        before: FeatureSets,
        after: FeatureSets,
        row: dict[str, Any],
        history: pd.DataFrame,
        said: Any,
        unreadable: Any,
    ) -> CellResult:
        """Return a cell: Eq. 17, the accuracies on D_P, and both probes on D_H."""
        config, payload = self.config, plan.payload
        pairs = {
            "": (before.pretrain, after.pretrain, before.harmful, after.harmful),
            "test_": (before.pretrain_test, after.pretrain_test, before.harmful_test, after.harmful_test),
        }
        ratios: dict[str, Any] = {}
        warnings = list(said)
        for prefix, features in pairs.items():
            draws = [
                rir_from_features(
                    *features,
                    groups=config.groups,
                    group_size=min(config.group_size, *map(len, features)),
                    seed=payload["seed"] + DRAW_STRIDE * draw,
                )
                for draw in range(DRAWS)
            ]
            ratios |= _ratios(draws, prefix)
            new = [text for text in draws[0].warnings if text not in warnings]
            warnings += [f"{prefix.replace('_', ' images: ')}{text}" for text in new]
        rows = (
            after.harmful.values,
            after.harmful.labels,
            after.harmful_test.values,
            after.harmful_test.labels,
        )
        probe = probe_accuracy(*rows, epochs=config.probe_epochs, seeds=(payload["seed"],))
        convex = convex_probe(*rows, seed=payload["seed"])
        best = probe.best_curve
        if probe.at_edge:
            warnings.append("The best learning rate of the probe is at the edge of its grid.")
        if not convex.converged:
            warnings.append(
                f"The convex probe stopped at {convex.iterations} iterations: its accuracy is a lower bound."
            )
        bad = {str(image): None for image in unreadable}
        bad |= {str(image): None for part in vars(after).values() for image in part.unreadable}
        return CellResult(
            {
                "backbone": payload["backbone"],
                "method": payload["method"],
                "seed": payload["seed"],
                **row,
                **ratios,
                "dimension": after.pretrain.dimension,
                "group_size": config.group_size,
                "accuracy": head_accuracy(theta.cpu(), after.pretrain_test),
                "probe_final": probe.final_accuracy,
                "probe_mean": float(best["mean"].iloc[1:].mean()),
                "probe_rate": probe.learning_rates[0],
                "probe_multiple": probe.learning_rates[0] * probe.smoothness,
                "convex": convex.test_accuracy,
                "convex_converged": convex.converged,
                "chance": _chance(after.harmful_test),
                "checksum": theta.checksum,
                "unreadable": len(bad),
            },
            {
                "probe": best["mean"].to_numpy(),
                "warnings": np.array(list(dict.fromkeys(warnings)), dtype=np.str_),
                "unreadable": np.array(list(bad), dtype=np.str_),
                **{str(name): history[name].to_numpy(np.float64) for name in history.columns},
            },
        )

    def _features(
        self, backbone: Backbone, tasks: DeepTasks, seed: int, *, keep: bool = False
    ) -> FeatureSets:
        """Return the features of a model on all sets; those of θ₀ are kept on the disk."""
        transform = task_transform(self.config, tasks, backbone).still
        assert transform is not None  # `training_transform` knows it
        cache = self.folder / "features" if keep else None

        def of(data: ImageData) -> Features:
            return cached_features(
                backbone, data, transform, cache=cache, name=backbone.name, device=self.config.device,
                workers=self.config.workers,
            )  # fmt: skip

        sample = rir_sample(tasks.pretrain, self.config.groups * self.config.group_size, seed)
        return FeatureSets(of(sample), of(tasks.pretrain_test), of(tasks.harmful), of(tasks.harmful_test))

    def _save(self, backbone: Backbone, plan: CellPlan) -> Path:
        """Write the model of a cell."""
        file = self.model_file(plan.key)
        file.parent.mkdir(parents=True, exist_ok=True)
        payload = plan.payload
        notes = {"method": str(payload["method"]), "seed": str(payload["seed"]), "data": plan.data_checksum}
        return save_backbone(backbone, file, notes=notes)

    def _checkpoint(self, plan: CellPlan) -> Path:
        """Return where the state of an unfinished cell lies."""
        path = self.folder / "models" / f"{plan.key[:32]}.checkpoint"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def rir_sample(data: ImageData, count: int, seed: int) -> ImageData:
    """Return the images from which the groups of Eq. 17 are drawn, a tenth in reserve for unreadable ones."""
    wanted = count + count // 10
    if wanted >= len(data):
        return data
    chosen = np.random.default_rng([seed, 17]).permutation(len(data))[:wanted]
    return data.take(np.sort(chosen))


def _ratios(draws: list[RirTheta0], prefix: str) -> dict[str, Any]:
    """Return both conventions of Eq. 17: of the first draw of groups, and between which values all lie."""
    columns: dict[str, Any] = {}
    for convention in CONVENTIONS:
        estimate: RirEstimate = getattr(draws[0], convention)
        start = f"{convention}.{prefix}"
        for name in ("harmful_ratio", "pretrain_ratio", "rir"):
            columns[f"{start}{name}"] = getattr(estimate, name)
            columns[f"{start}{name}_group_std"] = getattr(estimate, f"{name}_std")
        found = [getattr(draw, convention).rir for draw in draws]
        columns[f"{start}rir_least_draw"], columns[f"{start}rir_largest_draw"] = min(found), max(found)
        columns[f"{start}success"] = estimate.success
        if prefix:
            continue
        for index, role in enumerate(
            ("pretrain_before", "pretrain_after", "harmful_before", "harmful_after")
        ):
            columns[f"{convention}.kappa_{role}"] = float(np.median(estimate.kappas[index]))
            columns[f"{convention}.rank_{role}"] = int(np.median(estimate.ranks[index]))
    return columns


def _chance(features: Features) -> float:
    """Return the share of the commonest class: what a probe has without looking."""
    return float(np.bincount(features.labels).max() / len(features))
