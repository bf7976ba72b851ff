"""The triangular factor of a covariance: the same Hessian as the factor that it comes from."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from condnum.methods.problem import LinearTask
from condnum.theory.extremes import TriangularFactor


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), D=st.integers(1, 12), columns=st.integers(1, 12), data=st.data())
def test_its_product_has_the_gram_matrix_of_the_factor(seed, D, columns, data):
    rows = data.draw(st.integers(1, D))
    generator = torch.Generator().manual_seed(seed)
    B = torch.randn(rows, D, generator=generator, dtype=torch.float64)
    theta = torch.randn(D, columns, generator=generator, dtype=torch.float64)
    before = theta.clone()
    F, expected = TriangularFactor.of(B).times(theta), B @ theta
    torch.testing.assert_close(F.mT @ F, expected.mT @ expected, rtol=1e-11, atol=1e-11)
    assert torch.equal(theta, before)


def test_small_singular_values_survive():
    # Rows graded over 12 orders, as those of a covariance factor: each keeps its own digits.
    generator = torch.Generator().manual_seed(0)
    Q, _ = torch.linalg.qr(torch.randn(40, 30, generator=generator, dtype=torch.float64))
    B = torch.logspace(0, -6, 30, dtype=torch.float64)[:, None] * Q.mT
    theta = torch.randn(40, 40, generator=generator, dtype=torch.float64)
    obtained = torch.linalg.svdvals(TriangularFactor.of(B).times(theta))
    torch.testing.assert_close(obtained, torch.linalg.svdvals(B @ theta), rtol=1e-9, atol=0)


def test_it_writes_where_it_is_told():
    B = torch.eye(2, 3, dtype=torch.float64)
    out = torch.empty(2, 5, dtype=torch.float64)
    assert TriangularFactor.of(B).times(torch.ones(3, 5, dtype=torch.float64), out=out) is out
    torch.testing.assert_close(out.abs(), torch.ones(2, 5, dtype=torch.float64))


@pytest.mark.parametrize(("rows", "worth_it"), [(3, False), (4, True), (8, True)])
def test_a_task_has_one_where_it_saves_work(rows, worth_it):
    factor = torch.eye(rows, 8, dtype=torch.float64)
    task = LinearTask(factor.mT @ factor, known_factor=factor)
    assert (task.triangular_factor is not None) == worth_it
