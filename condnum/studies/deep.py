"""The deep-net experiment (Sec. 5.2, Table 3, Fig. 3): backbones × seeds × methods."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from condnum.arrays import resolve_device
from condnum.data.images import ImageData, imagenet_classes, open_images
from condnum.deep.backbone import (
    IMAGENET_CLASSES,
    Backbone,
    load_backbone,
    save_backbone,
    size_arguments,
)
from condnum.deep.features import ImageFeatures, head_accuracy
from condnum.deep.methods import NetMethod, get_net_method
from condnum.deep.pretraining import pretrain_backbone
from condnum.deep.probe import fit_head
from condnum.deep.rir import check_count, rir_sample
from condnum.deep.training.immunization import immunize_backbone
from condnum.deep.training.samples import Samples, hold_out
from condnum.deep.training.settings import DeepSettings, deep_preset, default_settings
from condnum.deep.transforms import Augmentation, ImageTransform, training_transform
from condnum.deep.weights import head_outputs, read_weights
from condnum.errors import DataNotFoundError, InvalidInputError, require
from condnum.files import atomic_write, output_folder
from condnum.studies.deep_measures import (
    DeepTasks,
    FeatureSets,
    doubts,
    is_folder,
    is_model,
    measured_features,
    net_curves,
    net_results,
    net_summary,
)
from condnum.studies.deep_recipes import (
    DIGITS,
    ERASE_TRANSFORMED,
    IMAGES,
    INITIAL,
    LIMIT_SEED,
    NET_METHODS,
    RECIPES,
    BackboneRecipe,
    NetMethods,
    Recipe,
    known_methods,
)
from condnum.studies.frame import Cell, CellResult, Count, FinishedCell, Names, at_least
from condnum.studies.frame.cells import Row
from condnum.studies.method_study import MethodStudy

#: A model with its row, its history, what was said on the way, and images that do not decode.
Made: TypeAlias = tuple[Backbone, Row, pd.DataFrame, Sequence[str], Sequence[Any]]

#: Weights that are no file.
WEIGHTS = ("none", "timm", "bundled")
#: Images that go through a net at a time where it is measured.
BATCH = 64

#: Row of a model that is not trained here.
AS_LOADED: Row = {"steps": 0, "best_step": 0, "seconds": 0.0, "stop_reason": "as loaded"}


@dataclass(frozen=True)
class DeepNets(MethodStudy, name="deep", notebook="deep"):
    """Table 3 and Figure 3: the last stage of a backbone is immunized; θ₀ is a cell too."""

    data: Literal["embedded", "mnist", "imagenette-cars", "images"]  # images: `benign` and `harmful`
    benign: str  # D_P, a name for `open_images`; "": the recipe's
    harmful: str  # D_H
    backbone: Names  # timm names; empty: the recipe's
    weights: str  # none (drawn), timm, bundled, or a file; "": the recipe's
    preset: str  # settings of Table 4; "": the recipe's
    methods: NetMethods  # empty: those of Table 3
    seeds: Count  # seeds 0 … seeds − 1
    epochs: Count | None  # of immunization; None: the settings' own
    pretrain_epochs: Count | None  # of training a drawn θ₀ on D_P; None: the recipe's
    finetune_benign: Count | None  # epochs of loaded weights on D_P, with a new head; None: as they are
    augmentation: Augmentation  # of the images that θ₀ and θ_I are trained on
    limit: Annotated[int, at_least(2)] | None  # images per class and split; None: the recipe's
    image_size: Count | None  # side; None: the recipe's, else the backbone's
    groups: Count  # of Eq. 17
    group_size: Annotated[int, at_least(2)]
    device: str
    workers: Annotated[int, at_least(0)]  # processes that decode
    probe_epochs: Count = field(default=50, kw_only=True)  # of Fig. 3

    def check(self) -> None:
        """Refuse what cannot run, before anything is computed."""
        if self.benign and self.harmful and self.data in DIGITS:
            object.__setattr__(self, "data", IMAGES)
        self.fill(methods=NET_METHODS)
        object.__setattr__(self, "methods", tuple(name for name in known_methods() if name in self.methods))
        if self.weights not in ("", *WEIGHTS):
            object.__setattr__(self, "weights", str(Path(self.weights).expanduser()))
            if not Path(self.weights).is_file():
                raise DataNotFoundError(
                    f"--weights {self.weights}: there is no such file; give a .safetensors file or a state "
                    "dict, or none (initialize θ₀ at random and train it on D_P), timm (download timm's "
                    "weights) or bundled (those of the extra 'pretrained')."
                )
        if (self.data == IMAGES or self.benign or self.harmful) and not (self.benign and self.harmful):
            raise InvalidInputError(
                "your own images need both tasks: give --benign (D_P) and --harmful (D_H), each a "
                "folder or mnist:0-4; without them, --data embedded uses the bundled digits."
            )
        if self.preset:
            deep_preset(self.preset)
        resolve_device(self.device)

    @property
    def defaults(self) -> Recipe:
        """What the data come with."""
        return RECIPES[self.data]

    @property
    def chosen_weights(self) -> str:
        """`none`, `timm` or a file."""
        return self.weights or self.defaults.weights

    @property
    def as_loaded(self) -> bool:
        """Whether weights are loaded, and only a head is fitted if theirs is not for D_P."""
        return self.chosen_weights != "none" and self.finetune_benign is None

    def head_outputs(self, name: str) -> int:
        """Return the outputs of the head that comes with the weights of a backbone; 0 without one."""
        timm = require("timm", "deep")
        known = timm.get_pretrained_cfg(name) if timm.is_model(name.split(".")[0]) else None
        if self.chosen_weights in WEIGHTS:
            return int(known.num_classes) if known else IMAGENET_CLASSES
        return head_outputs(read_weights(self.chosen_weights), known.classifier if known else "")

    def keeps_head(self, data: DeepTasks, name: str) -> bool:
        """Whether the head of loaded weights is kept: that of ImageNet, or a file's for as many classes."""
        own = self.as_loaded and self.chosen_weights not in WEIGHTS
        return data.imagenet_head or (own and self.head_outputs(name) == len(data.benign.classes))

    @property
    def chosen_backbones(self) -> tuple[str, ...]:
        """Names of the backbones."""
        return self.backbone or tuple(known.name for known in self.defaults.backbones)

    @property
    def side(self) -> int | None:
        """Side of the images; None: what the backbone's weights were made for."""
        return self.image_size or self.defaults.image_size

    def recipe(self, name: str) -> BackboneRecipe:
        """Return how a backbone is made: timm arguments, how θ₀ is trained, settings by method."""
        known = next((b for b in self.defaults.backbones if b.name == name), BackboneRecipe(name))
        if self.as_loaded:
            return replace(known, pretraining=None)
        asked = self.pretrain_epochs or self.finetune_benign
        epochs = {} if asked is None else {"epochs": asked}
        return replace(known, pretraining={**(known.pretraining or self.defaults.pretraining), **epochs})

    def settings(self, backbone: str, method: str) -> DeepSettings:
        """Return a method's settings on a backbone: a preset, or the recipe's, with the user's epochs."""
        own, chosen = self.recipe(backbone), _method(method)
        known = {**self.defaults.settings, **own.settings}
        known |= own.ours if {"well", "ill"} <= chosen.parts.keys() else {}
        known |= chosen.defaults
        if chosen.probe:
            known |= self.defaults.imma
        base = deep_preset(self.preset) if self.preset else DeepSettings(**known)
        if chosen.name == "erase":  # no recipe has settings for it
            base = default_settings(chosen)
        if method == ERASE_TRANSFORMED:  # the best θ would be that which hides from images as they are
            base = base.with_overrides(transformed=True, keep="last")
        base = base.with_overrides(group_size=self.group_size)
        return base if self.epochs is None else base.with_overrides(epochs=self.epochs, steps=None)

    def load(self) -> DeepTasks:
        """Open the images; class folders of ImageNet-1K get the label order of a head that comes along."""
        names = (self.benign or self.defaults.benign, self.harmful or self.defaults.harmful)
        limit = self.limit or self.defaults.limit

        def opened(name: str, split: str, classes: tuple[str, ...] | None = None) -> ImageData:
            order = classes if is_folder(name) else None
            return open_images(name, split, limit=limit, seed=LIMIT_SEED, classes=order)

        benign, harmful = (opened(name, "train") for name in names)
        imagenet = self.as_loaded and set(benign.classes) <= set(imagenet_classes())
        if imagenet := imagenet and {IMAGENET_CLASSES} == set(map(self.head_outputs, self.chosen_backbones)):
            benign = opened(names[0], "train", imagenet_classes())
        parts: list[ImageData] = []
        for name, data, task in ((names[0], benign, "D_P"), (names[1], harmful, "D_H")):
            rest, held = hold_out(data.labels, LIMIT_SEED)
            check_count(len(rest), f"{task} without what is held out", self.group_size)
            apart = replace(data.take(held), split=f"{data.split}, held out")
            parts += [data.take(rest), apart, opened(name, "test", data.classes)]
        return DeepTasks(imagenet, *parts)

    @property
    def measured(self) -> dict[str, Any]:
        """How every model is measured."""
        return {
            "groups": self.groups,
            "group_size": self.group_size,
            "probe_epochs": self.probe_epochs,
            "image_size": self.side,
            "augmentation": self.augmentation,
        }

    def cells(self, data: DeepTasks) -> list[Cell]:
        """List what makes θ₀, then the methods; each backbone is made, so that what cannot run fails now."""
        starts, methods = [], []
        for name in self.chosen_backbones:
            recipe = self.recipe(name)
            origin = {
                "arguments": dict(recipe.arguments),
                "weights": self.create(data, name, seed=0).checksum,
                "pretraining": dict(recipe.pretraining or {}),
                "device": resolve_device(self.device).type,
            }
            for seed in range(self.seeds):
                where = {"backbone": name, "seed": seed, **self.measured}
                starts.append(start := Cell({"method": INITIAL, **where}, origin))
                methods += [
                    Cell({"method": method, **where}, asdict(self.settings(name, method)), after=start)
                    for method in self.methods
                ]
        return [*starts, *methods]

    def create(self, data: DeepTasks, name: str, seed: int) -> Backbone:
        """Make the backbone before any training here; timm is told the side where a model has one only."""
        weights = self.chosen_weights
        return Backbone(
            name,
            pretrained={"none": False, "timm": True}.get(weights, weights),
            num_classes=None if data.imagenet_head else len(data.benign.classes),
            classifier="loaded" if weights in WEIGHTS or self.keeps_head(data, name) else "new",
            seed=seed,
            **{**size_arguments(name, self.side), **self.recipe(name).arguments},
        )

    def transform(self, backbone: Backbone) -> ImageTransform:
        """Return the training transform; drawn weights prescribe no crop, and digits have no border."""
        crop = {"crop_pct": 1.0} if self.chosen_weights == "none" or self.data in DIGITS else {}
        return training_transform(backbone, input_size=self.side, augmentation=self.augmentation, **crop)

    def compute(self, data: DeepTasks, cell: Cell) -> CellResult:
        """Make the model of a cell and measure it beside θ₀, whose own ratios are 1 by definition."""
        checkpoint = model_file(cell, ".checkpoint")
        theta, row, history, said, unreadable = self.make(data, cell, checkpoint)
        notes = {"method": cell["method"], "seed": str(cell["seed"]), "data": data.checksum}
        save_backbone(theta, model_file(cell), notes=notes)
        after = self._features(data, cell)
        before = after if cell.after is None else self._features(data, cell.after)
        theta = theta.cpu()
        if cell.after is None:
            tables = {
                f"{kind}_{task}": np.concatenate([getattr(part, name) for part in parts])
                for task, parts in (("P", after[:2]), ("H", after[2:]))
                for kind, name in (("X", "values"), ("y", "labels"))
            }
            with atomic_write(model_file(cell, ".features.npz")) as file, file.open("wb") as stream:
                np.savez(stream, **tables)  # type: ignore[arg-type]
            said = [*data.warnings, *doubts(data, theta, after.benign_test)]
        found, arrays, warnings = measured_features(cell, before, after, said)
        images = [*unreadable, *(image for part in after for image in part.unreadable)]
        bad = list(dict.fromkeys(map(str, images)))
        row = {
            **{name: cell[name] for name in ("backbone", "method", "seed")},
            **row,
            **found,
            "accuracy": head_accuracy(theta, after.benign_test),
            "checksum": theta.checksum,
            "unreadable": len(bad),
        }
        arrays |= {
            "warnings": np.array(list(dict.fromkeys(warnings)), dtype=np.str_),
            "unreadable": np.array(bad, dtype=np.str_),
            **{str(name): history[name].to_numpy(np.float64) for name in history.columns},
        }
        checkpoint.unlink(missing_ok=True)
        return CellResult(row, arrays)

    def make(self, data: DeepTasks, cell: Cell, checkpoint: Path) -> Made:
        """Immunize the θ₀ of a cell; or create it, and train it on D_P or fit its head if need be."""
        if cell.after is not None:
            return self._immunized(data, cell, cell.after, checkpoint)
        backbone = self.create(data, cell["backbone"], cell["seed"])
        options = self.recipe(cell["backbone"]).pretraining
        if options is None:
            if self.keeps_head(data, cell["backbone"]):
                return backbone, AS_LOADED, pd.DataFrame(), (), ()
            started, rows = time.perf_counter(), self._of(cell, backbone, data.benign)
            fit_head(backbone, rows, seed=cell["seed"])
            row = AS_LOADED | {"seconds": time.perf_counter() - started, "stop_reason": "new head, logistic"}
            return backbone, row, pd.DataFrame(), (), rows.unreadable
        made = pretrain_backbone(
            backbone,
            data.benign,
            transform=self.transform(backbone),
            seed=cell["seed"],
            device=self.device,
            workers=self.workers,
            checkpoint=checkpoint,
            **options,
        )
        row = AS_LOADED | {"seconds": made.seconds, "stop_reason": "trained"}
        return backbone, row, made.history.add_prefix("pretraining."), (), made.unreadable

    def _immunized(self, data: DeepTasks, cell: Cell, start: Cell, checkpoint: Path) -> Made:
        """Immunize θ₀ by a method."""
        theta_0 = load_backbone(model_file(start))
        transform = self.transform(theta_0)
        done = immunize_backbone(
            theta_0,
            data.benign,
            data.harmful,
            method=_method(cell["method"]),
            settings=DeepSettings(**cell.settings),
            validation=data.benign_held,
            validation_H=data.harmful_held,
            transform_P=transform,
            transform_H=transform,
            seed=cell["seed"],
            device=self.device,
            checkpoint=checkpoint,
            activations=self._activations(cell),
            workers=self.workers,
        )
        row: Row = {
            **{name: getattr(done, name) for name in ("steps", "best_step", "seconds", "stop_reason")},
            **{f"weight.{name}": value for name, value in done.part_weights.items()},
        }
        return done.theta_I, row, done.history.add_prefix("history."), done.warnings, done.unreadable

    def _features(self, data: DeepTasks, cell: Cell) -> FeatureSets:
        """Return the features of a cell's model on all sets."""
        backbone = load_backbone(model_file(cell))
        sample = rir_sample(len(data.benign), self.groups * self.group_size, cell["seed"])
        others = [self._of(cell, backbone, of) for of in (data.benign_test, data.harmful, data.harmful_test)]
        return FeatureSets(self._of(cell, backbone, data.benign, sample), *others)

    def _of(
        self, cell: Cell, backbone: Backbone, images: ImageData, rows: NDArray[np.int64] | None = None
    ) -> ImageFeatures:
        """Return the features of some images, or of all, from kept activations where there are some."""
        backbone, folder = backbone.to(resolve_device(self.device)), self._activations(cell)
        samples = Samples(images, self.transform(backbone).unaugmented, seed=0, workers=self.workers)
        if folder is not None:
            samples.keep_activations(backbone, BATCH, folder, rows)
        return samples.features(backbone, BATCH, rows)

    def _activations(self, cell: Cell) -> Path | None:
        """Return where the output of the frozen trunk is kept, with the models; digits take no time."""
        return None if self.data in DIGITS else Path(cell.folder) / "activations"

    def is_whole(self, cell: Cell) -> bool:
        """Tell whether the model of a finished cell is there, and θ₀'s features."""
        needed = [".safetensors", *([".features.npz"] if cell.after is None else [])]
        return not is_model(cell) or all(model_file(cell, suffix).is_file() for suffix in needed)

    @property
    def small(self) -> bool:
        """Whether cells side by side gain more than threads do."""
        return self.data in DIGITS and resolve_device(self.device).type == "cpu"

    @property
    def threads(self) -> int | None:  # type: ignore[override]
        """One thread in each of several small cells."""
        return 1 if self.small else None

    def processes(self, data: Any, cells: Sequence[Cell]) -> int:
        """Start workers for small cells."""
        return super().processes(data, cells) if self.small else 1

    def tables(self, data: DeepTasks, results: Sequence[FinishedCell]) -> dict[str, pd.DataFrame]:
        """Return a row per backbone × seed × method × convention, the mean beside Table 3, and the curves."""
        table = net_results(data, results)
        summary = net_summary(table, data)
        return {"results": table, "summary": summary, "curves.parquet": net_curves(results)}

    def notes(self, results: Sequence[FinishedCell], name: str) -> pd.DataFrame:
        """Return what the measurements warn of (`warnings`), or images that do not decode (`unreadable`)."""
        said = [
            (text, f"{row['backbone']}, {row['method']}, seed {row['seed']}")
            for _, row, arrays in results
            for text in arrays.get(name, np.array([])).tolist()
        ]
        texts = pd.DataFrame(said, columns=["text", "first"]).groupby("text", sort=False, as_index=False)
        return texts["first"].agg(cells="size", first="first")

    def files(self, results: Sequence[FinishedCell], folder: Path) -> list[str]:
        """Copy the models to `<backbone>/seed-<n>[/<method>]`, and θ₀'s features as tables beside it."""
        names = []
        for cell in (result.cell for result in results if is_model(result.cell)):
            backbone = "".join(c if c.isalnum() or c in "._-" else "-" for c in cell["backbone"])
            own = "theta_0" if cell.after is None else f"{cell['method']}/theta_I"
            final = Path(backbone, f"seed-{cell['seed']}", f"{own}.safetensors")
            model = model_file(cell)
            if not model.is_file():
                raise DataNotFoundError(
                    f"the model {model} no longer exists; run the experiment with a permanent folder, and "
                    "save before it is deleted."
                )
            output_folder(folder / final.parent)
            with atomic_write(folder / final) as temporary:
                shutil.copyfile(model, temporary)
            names.append(final.as_posix())
            if cell.after is None:
                with np.load(model_file(cell, ".features.npz"), allow_pickle=False) as features:
                    for name, array in features.items():
                        np.save(output_folder(folder / final.with_name("features")) / f"{name}.npy", array)
                        names.append(final.with_name("features").joinpath(f"{name}.npy").as_posix())
        return names

    def facts(self, data: DeepTasks) -> dict[str, str]:
        """Return what the run was made of."""
        device = resolve_device(self.device)
        place = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        sets = {
            f"{one.name} ({one.split})": f"{len(one.classes)} classes, {len(one):,} images, SHA-256 "
            f"{one.checksum}"
            for one in data.all
        }
        versions = {"numerics": "float32", "timm": str(require("timm", "deep").__version__)}
        return sets | {"device": f"{place} ({device})"} | versions


def _method(name: str) -> NetMethod:
    """Return the method of a name, which may stand for one with other settings."""
    return get_net_method("erase" if name == ERASE_TRANSFORMED else name)


def model_file(cell: Cell, suffix: str = ".safetensors") -> Path:
    """Return where the model of a cell lies, or the state of an unfinished one."""
    folder = Path(cell.folder) / "models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{cell.key}{suffix}"
