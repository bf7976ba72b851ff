"""What cannot run is refused when a study is made, with the value and the fix."""

import pytest

from condnum.errors import CondnumError
from condnum.studies.alignment_path import AlignmentPath
from condnum.studies.attackers import Attackers
from condnum.studies.limits import Limits
from condnum.studies.linear import DigitPairs, HousePrices
from condnum.studies.release import ReproductionAudit


@pytest.mark.parametrize(
    ("study", "values", "words"),
    [
        (HousePrices, {"features": "clear"}, "unknown features 'clear'; did you mean 'clean'"),
        (HousePrices, {"rows": 1}, "rows must be an integer of at least 2, got 1"),
        (HousePrices, {"device": "cuda:99"}, "cuda:99"),
        (
            HousePrices,
            {"data": "mnist"},
            "data 'mnist': house-prices takes house-prices, embedded or",
        ),
        (DigitPairs, {"pairs": ((4, 4),)}, "two different digits"),
        (DigitPairs, {"pairs": "4-7,4-x"}, "expected a pair of digits such as 4-7, .*got '4-x'"),
        (DigitPairs, {"methods": ("our",)}, "did you mean 'ours'"),
        (DigitPairs, {"steps": -1}, "steps must be an integer of at least 1"),
        (DigitPairs, {"data": "embedded"}, "digit-pairs takes mnist, digits or a path"),
        (Limits, {"data": "svhn"}, "unknown data set 'svhn'"),
        (Limits, {"pairs": "4-7"}, "house-prices is one pair"),
        (Attackers, {"data": "mnst:4-9"}, "did you mean 'mnist:4-9'"),
        (Attackers, {"data": "digits"}, "come with a pair"),
        (Attackers, {"data": "house-prices:4-9"}, "tables without one"),
        (Attackers, {"attackers": ("adm",)}, "did you mean 'adam'"),
        (Attackers, {"loss": "logistic"}, "house prices are a regression"),
        (Attackers, {"rows": 1}, "rows must be an integer of at least 4"),
        (Attackers, {"attack_steps": -1}, "attack_steps must be an integer of at least 1"),
        (AlignmentPath, {"data": "digits:4-4"}, "two different digits"),
        (AlignmentPath, {"steps": -1}, "at least 1"),
        (
            ReproductionAudit,
            {"epochs": "10,ten"},
            "as in 10,100, must be an integer of at least 0, got 'ten'",
        ),
        (ReproductionAudit, {"data": "mnist"}, "takes house-prices, embedded or a path"),
        (ReproductionAudit, {"epochs": (), "ends": "0"}, "name no number of epochs"),
    ],
    ids=str,
)
def test_refused(study, values, words):
    with pytest.raises(CondnumError, match=words):
        study(**values)
