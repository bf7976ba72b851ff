"""condnum: model immunization from a condition-number perspective.

The names that most readers need; the packages below (`condnum.theory`, `condnum.methods`, …) have more. They
need NumPy, SciPy, pandas, torch and scikit-learn alone. Figures, notebooks, deep nets and clusters live in
`condnum.experiments`, `condnum.page`, … behind extras.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: The public names, by the module that each is imported from.
_HOMES = {
    "condnum.estimators": ["Immunizer", "Eraser"],
    "condnum.auditing.audit": ["audit"],
    "condnum.experiments.referee": ["referee"],
    "condnum.auditing.depth": ["insert_extractor", "layer_audit"],
    "condnum.probing.panel": ["attack_panel"],
    "condnum.probing.probe": ["linear_probe", "probe_steps"],
    "condnum.theory.task": ["Task"],
    "condnum.theory.kappa": ["covariance", "hessian", "condition_number", "relative_immunization_ratio"],
    "condnum.theory.alignment": ["alignment"],
    "condnum.theory.limits": ["rir_limit", "max_rir_immunizer", "pareto_immunizer"],
    "condnum.theory.erasure": ["erasure", "erasure_price"],
    "condnum.theory.regularizers": [
        "r_well",
        "r_well_gradient",
        "r_ill",
        "r_ill_gradient",
        "well_step",
        "ill_step",
    ],
    "condnum.methods.problem": ["ImmunizationProblem"],
    "condnum.methods.immunization": ["immunize", "method_names", "get_method"],
    "condnum.methods.descent": ["DescentSettings", "PRESETS"],
    "condnum.methods.method": ["Method"],
    "condnum.data": [
        "TaskPair",
        "digit_pair",
        "load_house_prices",
        "load_diabetes_tasks",
        "load_mnist_images",
        "load_small_digits",
    ],
    "condnum.errors": ["CondnumError"],
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a name when it is first used (PEP 562), so that no help text waits for torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'condnum' has no attribute '{name}'")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
