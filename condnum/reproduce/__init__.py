"""All experiments of a scale in one command, and the record of what became of each."""

from condnum.reproduce.experiments import Experiment, Scale, experiments
from condnum.reproduce.record import ExperimentRecord, ReproductionRecord, read_record
from condnum.reproduce.run import reproduce

__all__ = [
    "Experiment",
    "ExperimentRecord",
    "ReproductionRecord",
    "Scale",
    "experiments",
    "read_record",
    "reproduce",
]
