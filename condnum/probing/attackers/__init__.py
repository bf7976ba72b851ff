"""Attackers who train on released features, and the panel that measures how far each is slowed."""

from condnum.probing.attackers.attack_report import AttackReport
from condnum.probing.attackers.attacker import (
    Attacker,
    AttackerBase,
    AttackProblem,
    AttackRun,
    attacker_names,
    get_attacker,
    register_attacker,
    zero_weights,
)
from condnum.probing.attackers.built_in import BUILT_IN
from condnum.probing.attackers.facts import effective_condition
from condnum.probing.attackers.feature_set import AttackTask, FeatureSet
from condnum.probing.attackers.panel import attack_features, attack_panel
from condnum.probing.attackers.race import AttackBudget
from condnum.probing.attackers.sentences import attack_sentences

__all__ = [
    "BUILT_IN",
    "AttackBudget",
    "AttackProblem",
    "AttackReport",
    "AttackRun",
    "AttackTask",
    "Attacker",
    "AttackerBase",
    "FeatureSet",
    "attack_features",
    "attack_panel",
    "attack_sentences",
    "attacker_names",
    "effective_condition",
    "get_attacker",
    "register_attacker",
    "zero_weights",
]
