"""The attackers of this library, in display order."""

from condnum.probing.attackers.attacker import Attacker, register_attacker
from condnum.probing.attackers.closed_form import ClosedForm
from condnum.probing.attackers.factored import FineTuning, StackedLayer
from condnum.probing.attackers.first_order import (
    GradientDescent,
    HeavyBall,
    LineSearch,
    Nesterov,
    Standardised,
    Whitened,
)
from condnum.probing.attackers.quasi_newton import ConjugateGradients, LimitedMemoryBfgs
from condnum.probing.attackers.stochastic import AdamAttacker, StochasticDescent

BUILT_IN: tuple[Attacker, ...] = (
    GradientDescent(),
    LineSearch(),
    HeavyBall(),
    Nesterov(),
    StochasticDescent(),
    AdamAttacker(),
    ConjugateGradients(),
    LimitedMemoryBfgs(),
    StackedLayer(),
    FineTuning(),
    Standardised(),
    Whitened(),
    ClosedForm(),
)
for _attacker in BUILT_IN:
    register_attacker(_attacker)
