"""What cannot run is refused before anything is computed, with the value and the fix."""

import pytest

from condnum.errors import CondnumError
from condnum.studies.attackers import Attackers
from condnum.studies.digits import DigitPairs
from condnum.studies.house_prices import HousePrices
from condnum.studies.limits import Limits


@pytest.mark.parametrize(
    ("study", "values", "words"),
    [
        (HousePrices, {"features": "clear"}, "unknown features 'clear'; did you mean 'clean'"),
        (HousePrices, {"rows": 1}, "rows must be an integer ≥ 2, got 1"),
        (HousePrices, {"device": "cuda:99"}, "cuda:99"),
        (HousePrices, {"data": "mnist"}, "data 'mnist': house-prices takes house-prices, embedded or"),
        (DigitPairs, {"pairs": ((4, 4),)}, "two different digits"),
        (DigitPairs, {"pairs": "4-7,4-x"}, "expected a pair of digits such as 4-7, .*got '4-x'"),
        (Limits, {"data": "svhn"}, "unknown data set 'svhn'"),
        (Limits, {"pairs": "4-7"}, "house-prices is a single pair"),
        (Attackers, {"data": "mnst:4-9"}, "did you mean 'mnist:4-9'"),
        (Attackers, {"data": "house-prices:4-9"}, "tables take none"),
    ],
    ids=str,
)
def test_refused(study, values, words):
    with pytest.raises(CondnumError, match=words):
        study(**values).load()
