"""What cannot run is refused before anything is computed, with the value and the fix."""

import pytest

from condnum.errors import CondnumError
from condnum.studies.deep import DeepNets
from condnum.studies.deep_attackers import DeepAttackers
from condnum.studies.house_prices import HousePrices


@pytest.mark.parametrize(
    ("study", "values", "words"),
    [
        (HousePrices, {"features": "clear"}, "unknown features 'clear'; did you mean 'clean'"),
        (HousePrices, {"rows": 1}, "rows must be an integer ≥ 2, got 1"),
        (HousePrices, {"device": "cuda:99"}, "cuda:99"),
        (HousePrices, {"data": "mnist"}, "data 'mnist': house-prices takes house-prices, embedded or"),
        (DeepNets, {"preset": "resnet18-car"}, "did you mean 'resnet18-cars'"),
        (DeepNets, {"data": "images", "benign": "a"}, "need both tasks"),
        (DeepAttackers, {"attackers": ("lora-adam",)}, "unknown deep attacker 'lora-adam'"),
        (DeepAttackers, {"shots": "8,many"}, "examples per class such as 8,128,0: .* got '8,many'"),
        (DeepAttackers, {"models": "nowhere"}, "nowhere has no theta_0.safetensors with"),
    ],
    ids=str,
)
def test_refused(study, values, words):
    with pytest.raises(CondnumError, match=words):
        study(**values).load()
