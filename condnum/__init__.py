"""condnum: model immunization from a condition-number perspective.

The names that most readers need; the packages below (`condnum.theory`, `condnum.methods`, …) have more. They
need NumPy, SciPy, pandas, torch and scikit-learn alone. Figures, notebooks, deep nets and clusters live in
`condnum.figures`, `condnum.report`, … behind extras.
"""

from condnum.lazy import attach

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = attach(
    __name__,
    {
        # extractors as scikit-learn and torch know them
        "Immunizer": "condnum.estimators",
        "Eraser": "condnum.estimators",
        # what they are worth
        "audit": "condnum.auditing.study",
        "layer_audit": "condnum.auditing.layers",
        "insert_extractor": "condnum.auditing.insertion",
        "attack_panel": "condnum.probing.panel",
        "linear_probe": "condnum.probing.probe",
        "probe_steps": "condnum.probing.probe",
        # condition numbers and what they allow
        "Task": "condnum.theory.task",
        "covariance": "condnum.theory.kappa",
        "hessian": "condnum.theory.kappa",
        "condition_number": "condnum.theory.kappa",
        "relative_immunization_ratio": "condnum.theory.kappa",
        "alignment": "condnum.theory.alignment",
        "rir_limit": "condnum.theory.limits",
        # closed forms
        "max_rir_immunizer": "condnum.theory.limits",
        "pareto_immunizer": "condnum.theory.limits",
        "erasure": "condnum.theory.erasure",
        "erasure_price": "condnum.theory.erasure",
        # regularizers and their steps
        "r_well": "condnum.theory.regularizers",
        "r_well_gradient": "condnum.theory.regularizers",
        "r_ill": "condnum.theory.regularizers",
        "r_ill_gradient": "condnum.theory.regularizers",
        "well_step": "condnum.theory.regularizers",
        "ill_step": "condnum.theory.regularizers",
        # methods
        "ImmunizationProblem": "condnum.methods.problem",
        "immunize": "condnum.methods.immunization",
        "DescentSettings": "condnum.methods.descent",
        "PRESETS": "condnum.methods.descent",
        "Method": "condnum.methods.method",
        "method_names": "condnum.methods.immunization",
        "get_method": "condnum.methods.immunization",
        # data
        "TaskPair": "condnum.data",
        "digit_pair": "condnum.data",
        "load_house_prices": "condnum.data",
        "load_diabetes_tasks": "condnum.data",
        "load_mnist_images": "condnum.data",
        "load_small_digits": "condnum.data",
        "CondnumError": "condnum.errors",
    },
)
