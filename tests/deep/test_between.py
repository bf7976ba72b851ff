"""What lies between two nets: the distance of their weights, and the error on the way."""

import copy

import pytest
import torch

from condnum.deep.backbone import Backbone
from condnum.deep.between import error_barrier, interpolated, weight_distance


@pytest.fixture(scope="module")
def ends():
    """A net, and one with other weights, head and statistics."""
    theta_0 = Backbone("test_resnet", num_classes=3)
    theta_i = copy.deepcopy(theta_0)
    with torch.no_grad():
        theta_i.model.get_parameter("layer4.0.conv1.weight").add_(0.5)
        theta_i.head.weight.add_(7.0)
        theta_i.model.get_buffer("bn1.running_mean").add_(2.0)
    return theta_0, theta_i


def test_distance_is_of_the_extractor_without_its_head(ends):
    count = ends[0].model.get_parameter("layer4.0.conv1.weight").numel()
    assert weight_distance(*ends) == pytest.approx(0.5 * count**0.5)
    assert weight_distance(ends[0], ends[0]) == 0


def test_the_ends_are_both_nets_and_the_middle_is_half_way(ends):
    for share, net in ((0.0, ends[0]), (1.0, ends[1])):
        assert interpolated(*ends, share).checksum == net.checksum
    middle = interpolated(*ends, 0.5)
    assert torch.equal(middle.head.weight, torch.lerp(ends[0].head.weight, ends[1].head.weight, 0.5))
    torch.testing.assert_close(
        middle.model.get_buffer("bn1.running_mean"), ends[0].model.get_buffer("bn1.running_mean") + 1
    )


@pytest.mark.parametrize(("accuracies", "barrier"), [
    ((0.9, 0.9, 0.3, 0.9, 0.9), 0.6), ((0.9, 0.8, 0.7, 0.6, 0.5), 0.0), ((0.5, 0.9, 0.9, 0.9, 0.5), 0.0),
    ((1.0, 0.6, 0.6, 0.6, 0.6), 0.3),
])  # fmt: skip
def test_barrier_is_how_far_the_error_rises_above_the_line(ends, accuracies, barrier):
    told = iter(accuracies)
    assert error_barrier(*ends, lambda net: next(told)) == pytest.approx(barrier)
