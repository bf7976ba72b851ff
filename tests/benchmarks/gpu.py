"""What a CUDA card does (`make gpu`): steps, Table 2, agreement with the CPU, a ResNet18, attacks, a sweep.

Each table is written as it grows. What fails, or no longer fits the time, is a line of its table and ends
nothing else. It needs numpy, scipy, pandas, scikit-learn and torch; the ResNet18 needs timm.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pandas as pd
import torch

from condnum.files import output_folder, write_tables, write_text
from condnum.machine import describe_device, is_out_of_memory, limited_threads, source_revision, versions
from condnum.methods import immunize, immunize_batch
from condnum.methods.problem import ImmunizationProblem
from condnum.studies.digit_cells import DigitBatches, batch_size, ceilings, cell_problem, measure_cell
from condnum.studies.executors import BatchExecutor, choose_executor, core_count
from condnum.studies.linear import PAPER_METHODS, DigitPairs
from condnum.studies.measure import spectral_rows
from condnum.studies.study import Computation, StudyRun

#: With fewer seconds left nothing more is begun.
RESERVE = 20
CELL = ["method", "seed", "pretrain_digit", "harmful_digit", "convention", "theta_scale"]
RATIOS = ["harmful_ratio", "pretrain_ratio", "rir"]
#: The tables in their order, which is also that in which time runs out.
TITLES = {
    "steps": "A step of Algorithm 1: one of many problems on the device, one on one core of the CPU",
    "table2": "Table 2",
    "agreement": "The same seeds on both: relative differences of θ (largest) and RIR (largest, median)",
    "resnet18": "A step on so many images of each task: immunization against fine-tuning",
    "attacks": "Deep attackers in batches of 32: images a second, measuring included, and peak memory",
    "sweep": "The cells of Table 2 on the device (the whole run: tasks, descents, measuring on all cores, "
    "storing), and those that all cores finish in the time left (start of the workers included)",
}


@dataclass(frozen=True)
class Sizes:
    """How much is computed."""

    dimensions: tuple[int, ...] = (64, 128, 256, 512, 784)
    problems: int = 270  # side by side in a step, as many as a method of Table 2 has
    pairs: tuple[tuple[int, int], ...] = ()
    seeds: int = 3
    steps: int | None = None
    early_steps: tuple[int, ...] = (1, 5, 20)
    net: str = "resnet18"
    side: int = 224
    images: tuple[int, ...] = (50, 256)
    attack_steps: int = 30


TINY = Sizes((8, 16), 3, ((4, 7), (9, 0)), 1, 4, (1,), "test_resnet", 32, (4,), 2)


@dataclass
class TimedBatches(DigitBatches):
    """The batches of Table 2, where their time goes, and the error after which cells are computed alone."""

    seconds: dict[str, float] = field(default_factory=lambda: {"tasks": 0.0, "batches": 0.0}, init=False)
    error: Exception | None = field(default=None, init=False)

    def size(self, cells):
        return self._timed("tasks", super().size, cells)

    def compute(self, cells):
        return self._timed("batches", super().compute, cells)

    def _timed(self, phase, call, cells):
        started = time.perf_counter()
        try:
            return call(cells)
        except Exception as error:
            self.error = None if is_out_of_memory(error) else error
            raise
        finally:
            self.seconds[phase] += time.perf_counter() - started


class GpuReport:
    """The tables of one run."""

    def __init__(self, device: torch.device, sizes: Sizes, folder: Path, seconds: float) -> None:
        self.device, self.sizes, self.folder, self.limit = device, sizes, folder, seconds
        self.started = time.perf_counter()
        self.tables: dict[str, list[dict]] = {}
        self.config = DigitPairs(
            "digits" if sizes is TINY else "mnist",
            PAPER_METHODS,
            seeds=sizes.seeds,
            steps=sizes.steps,
            pairs=sizes.pairs,
            device=str(device),
        )
        self.digits = self.config.load()
        self.on_cpu = dataclasses.replace(self.config, device="cpu")
        self.cells = self.on_cpu.planned(self.digits)
        self.table_2: StudyRun | None = None
        self.titles = TITLES | {"table2": f"Table 2 on {self.digits.label}"}
        self.machine = self._machine()

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.limit - (time.perf_counter() - self.started)

    def run(self) -> None:
        """Fill all tables."""
        for name in TITLES:
            rows = self.tables.setdefault(name, [])
            try:
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                self._check_time()
                for row in getattr(self, name)():
                    rows.append(row)
                    self.write()
            except TimeoutError as error:
                rows.append({"note": str(error)})
            except Exception as error:
                traceback.print_exc()
                rows.append({"note": f"{type(error).__name__}: {error}".splitlines()[0]})
            self.write()
            print(f"{self.titles[name]}, {self.limit - self.left:.0f} s\n{self._text(name)}\n", flush=True)

    def _check_time(self) -> None:
        """End a table whose next row no longer fits the time."""
        if self.left < RESERVE:
            raise TimeoutError(f"left out: {max(self.left, 0):.0f} s were left of {self.limit:g}")

    def steps(self) -> Iterator[dict]:
        """Both kinds of step, and a product of D×D matrices, by dimension."""
        from test_step import image_like, median_seconds, prepared_step

        for D in self.sizes.dimensions:
            self._check_time()
            problem = ImmunizationProblem(image_like(D, 1), image_like(D, 2))
            square = torch.randn(D, D, dtype=torch.float64)
            with limited_threads(1):
                step = median_seconds(prepared_step(problem)[0])
                gemm = median_seconds(partial(torch.mm, square, square))
            count = min(self.sizes.problems, batch_size(problem, self.device))
            squares = square.to(self.device).repeat(count, 1, 1)
            batch, memory = prepared_step(problem, count=count, device=self.device)
            there = median_seconds(partial(self._finished, batch)) / count
            product = median_seconds(partial(self._finished, torch.bmm, squares, squares)) / count
            yield {
                "D": D,
                "cpu_step_ms": 1e3 * step,
                "cpu_gemm_ms": 1e3 * gemm,
                "problems": count,
                "device_step_ms": 1e3 * there,  # of one problem
                "device_gemm_ms": 1e3 * product,
                "times_one_core": step / there,
                "eigh_fallbacks": int(memory.counts["eigh_fallbacks"].sum()),
            }

    def _finished(self, call, *arguments, device=None):
        """Call, and wait until the device has done it."""
        result = call(*arguments)
        if (device or self.device).type == "cuda":
            torch.cuda.synchronize(device or self.device)
        return result

    def _peak_mib(self, call, device):
        """Return what a call gives, and the peak of the device's memory meanwhile in MiB; NaN on a CPU."""
        if device.type == "cpu":
            return call(), math.nan
        torch.cuda.reset_peak_memory_stats(device)
        return call(), torch.cuda.max_memory_allocated(device) / 2**20

    def table2(self) -> Iterator[dict]:
        """The paper's four methods on all pairs; the seconds are those of the whole run, tables included."""

        def check(progress):
            if batches.error is not None:
                raise batches.error
            if self.left < 0:
                raise TimeoutError(f"left out: {progress.done} of {progress.total} cells in the time given")

        batches = TimedBatches(self.digits, self.device)
        executor = BatchExecutor(batches)
        started = time.perf_counter()
        run = self.config.run(self.digits, executor=executor, on_progress=check)
        summary = run.tables["summary"]
        seconds = time.perf_counter() - started
        self.table_2 = run
        cells = run.tables["results"].drop_duplicates(CELL[:4])
        descents = cells["seconds"].sum()
        self.sweep_row = {
            "device": str(self.device),
            "cells": run.report.computed,
            "failed": len(run.failures),
            "seconds": seconds,
            "cells_per_s": run.report.computed / seconds,
            "tasks_s": batches.seconds["tasks"],
            "descents_s": descents,
            "measuring_s": batches.seconds["batches"] - descents,
            "storing_s": seconds - sum(batches.seconds.values()),
            "eigh_fallbacks": int(cells["eigh_fallbacks"].sum()),
            "where": executor.where,
        }
        kept = ["dataset", "method", "convention", "theta_scale", "pairs", "seeds"]
        kept += [f"{name}_{of}" for name in RATIOS for of in ("mean", "std")]
        kept += ["success_rate", "loss_gap_max", "published_rir", "published_rir_std"]
        yield from summary[kept].to_dict("records")

    def agreement(self) -> Iterator[dict]:
        """θ and RIR of two pairs after a few steps and at the end."""
        first = [cell for cell in self.cells if cell["seed"] == 0]
        by_method = {m: [cell for cell in first if cell["method"] == m] for m in PAPER_METHODS}
        by_method = {m: [cells[0], cells[len(cells) // 2]] for m, cells in by_method.items()}
        problems = [cell_problem(self.digits, cell, "cpu") for cell in by_method["ours"]]
        bounds = [ceilings(problem) for problem in problems]
        for method, chosen in by_method.items():
            settings = self.config.settings(method)
            for steps in (*self.sizes.early_steps, settings.steps):
                self._check_time()
                short = settings.with_overrides(steps=steps, record_every=0)
                batch = immunize_batch(problems, method, seeds=[0, 0], settings=short, device=self.device)
                there = [dataclasses.replace(result, theta=result.theta.cpu()) for result in batch]
                here = [immunize(problem, method, seed=0, settings=short) for problem in problems]
                gaps = [(a.theta - b.theta).norm() / b.theta.norm() for a, b in zip(there, here, strict=True)]
                measured = []
                for results in (there, here):
                    cells = map(measure_cell, chosen, problems, results, bounds)
                    measured.append(pd.DataFrame([row for cell in cells for row in rir_rows(cell)]))
                yield {"method": method, "steps": steps, "theta": float(max(gaps))} | differences(*measured)

    def resnet18(self) -> Iterator[dict]:
        """Images a second and peak memory on the device, by batch and precision, then on the CPU."""
        from test_deep import prepared_steps
        from test_step import median_seconds

        sizes, runs = self.sizes.images, []
        if self.device.type == "cuda":
            runs = [(self.device, n, name) for n in sizes for name in ("float32", "bfloat16")]
        runs.append((torch.device("cpu"), sizes[0], "float32"))
        for device, images, precision in runs:
            row = {"device": str(device), "net": self.sizes.net, "images": images, "precision": precision}
            self._check_time()
            try:
                immunization, fine_tuning = prepared_steps(
                    self.sizes.net, images, self.sizes.side, device, precision
                )
                seconds = {}
                for name, call in (("fine_tuning", fine_tuning), ("immunization", immunization)):
                    step = partial(self._finished, call, device=device)
                    seconds[name], row[f"{name}_mib"] = self._peak_mib(partial(median_seconds, step), device)
                    row[f"{name}_images_per_s"] = 2 * images / seconds[name]
                row["overhead"] = seconds["immunization"] / seconds["fine_tuning"] - 1
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                row["note"] = "out of memory"
            yield row

    def attacks(self) -> Iterator[dict]:
        """Images a second of one trial of each descent through the net, on the attacker's random images."""
        from condnum.deep.attack_kinds import ATTACKERS, DeepAttacker, DeepBudget
        from condnum.deep.attack_panel import attack
        from condnum.deep.attack_target import Pixels, Target
        from condnum.deep.backbone import Backbone

        budget = DeepBudget(self.sizes.attack_steps, trials=1, checkpoints=2)
        images = torch.randn(5 * budget.batch_size, 3, self.sizes.side, self.sizes.side)
        pixels = Pixels(images, torch.arange(len(images)) % 10, 10)
        test = Pixels(images[: budget.batch_size], pixels.labels[: budget.batch_size], 10)
        target = Target(Backbone(self.sizes.net), pixels, test, device=self.device)
        descents = [one for one in map(DeepAttacker.named, ATTACKERS) if one.subset != "head"]
        for attacker in descents:
            row = {"device": str(self.device), "net": self.sizes.net, "attacker": attacker.name}
            self._check_time()
            if attacker is descents[0]:  # kernels are chosen, features computed
                attack(target, attacker, budget=dataclasses.replace(budget, steps=2))
            found, row["mib"] = self._peak_mib(partial(attack, target, attacker, budget=budget), self.device)
            row["images_per_s"] = budget.steps * budget.batch_size / found.seconds
            yield row

    def sweep(self) -> Iterator[dict]:
        """Table 2's cells on the device and on the cores of this machine, and how far they agree."""
        if self.table_2 is None:
            yield {"device": str(self.device), "note": "Table 2 did not come to its end"}
        else:
            yield self.sweep_row
        cores = core_count()
        executor = choose_executor(cores, threads=1)
        rows, failed, finished = [], 0, 0
        started = time.perf_counter()
        with closing(executor.run(Computation(self.on_cpu, self.digits.checksum), self.cells)) as outcomes:
            for outcome in outcomes:
                if outcome.result is None:
                    failed += 1
                else:
                    finished += 1
                    rows += rir_rows(outcome.result)
                if self.left < RESERVE:
                    break
            seconds = time.perf_counter() - started
        row = {"device": f"cpu, {cores} cores", "cells": finished, "failed": failed, "seconds": seconds}
        row["cells_per_s"] = finished / seconds
        if self.table_2 is not None and rows:
            row["device_times_this"] = self.sweep_row["cells_per_s"] / row["cells_per_s"]
            found, expected = self.table_2.tables["results"], pd.DataFrame(rows)
            for method in PAPER_METHODS:
                both = (table[table["method"] == method] for table in (found, expected))
                self.tables["agreement"].append({"method": method, "steps": "Table 2"} | differences(*both))
        yield row

    def write(self) -> None:
        """Write every table that has rows, and the page that shows them."""
        filled = {name: rows for name, rows in self.tables.items() if rows}
        write_tables(self.folder, {f"{name}.csv": pd.DataFrame(rows) for name, rows in filled.items()})
        parts = [f"### {self.titles[name]}\n```\n{self._text(name)}\n```" for name in filled]
        used = f"`make gpu`: {self.limit - self.left:.0f} s of at most {self.limit:g}."
        write_text(self.folder / "README.md", "\n\n".join([self.machine, used, *parts]) + "\n")

    def _machine(self) -> str:
        """Return on what this runs."""
        machine, known, source = describe_device(self.device), versions(), source_revision()
        data, cuda = self.digits, self.device.type == "cuda"
        memory = torch.cuda.get_device_properties(self.device).total_memory / 2**30 if cuda else 0
        return (
            f"# On {machine['name']}\n\n"
            f"* {datetime.now(UTC):%Y-%m-%d}, revision {source['revision'][:7] if source else 'unknown'}\n"
            f"* device: {machine['device']}{f', {memory:.0f} GiB' if cuda else ''}; "
            f"CPU: {machine['cpu']}, {core_count()} cores\n"
            f"* torch {torch.__version__}, CUDA {torch.version.cuda}, Python {known['python']}, NumPy "
            f"{known['numpy']}, SciPy {known['scipy']}\n"
            f"* digit pairs: {data.name}, {len(data)} images, SHA-256 {data.checksum[:8]} "
            f"({data.provenance.description})"
        )

    def _text(self, name: str) -> str:
        """Return a table as text."""
        return pd.DataFrame(self.tables[name]).to_string(index=False, na_rep="", float_format="{:.4g}".format)


def rir_rows(cell) -> list[dict]:
    """Return RIR of a cell in every convention, under the cell's coordinates."""
    return [{name: row[name] for name in (*CELL, "rir")} for row in spectral_rows(*cell, cell.row)]


def differences(found: pd.DataFrame, expected: pd.DataFrame) -> dict:
    """Return how far RIR differs between two tables of the same cells, relative to the second."""
    both = found.merge(expected, on=CELL, suffixes=("", "_expected"))
    both = both[both["theta_scale"] == "unit"]
    gap = ((both["rir"] - both["rir_expected"]) / both["rir_expected"]).abs()
    gap = gap.mask(both["rir"] == both["rir_expected"], 0.0)  # infinite ones too
    row = {"cells": len(both) // 2}
    for convention in ("ridge", "compact"):
        chosen = gap[both["convention"] == convention]
        row |= {f"rir_{convention}": chosen.max(), f"rir_{convention}_median": chosen.median()}
    return row


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=600, help="in all; what does not fit is left out")
    parser.add_argument("--out", type=Path, default=Path("reports/gpu"))
    parser.add_argument("--tiny", action="store_true", help="sizes of a test")
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print(f"torch {torch.__version__} sees no CUDA device here: nothing was measured.")
        return
    GpuReport(device, TINY if chosen.tiny else Sizes(), output_folder(chosen.out), chosen.seconds).run()


if __name__ == "__main__":
    main()
