"""The covariance as a tree reduction on two dask workers, equal to that of one machine."""

import numpy as np
import pytest

from condnum.audit.moments import cluster_moments, second_moments
from condnum.data.feature_stream import array_stream, open_feature_stream
from condnum.errors import InvalidInputError

pytestmark = pytest.mark.xdist_group("dask")


@pytest.fixture
def workers():
    """A scheduler with two workers, each a process."""
    distributed = pytest.importorskip("distributed", reason="needs dask: pip install 'condnum[cluster]'")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.slow
def test_two_workers_give_the_sums_of_one_machine(workers, tmp_path):
    X = np.random.default_rng(0).normal(size=(150_000, 4)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    stream = open_feature_stream(tmp_path / "X.npy")
    alone = second_moments(stream, groups=8, seed=5, kept_bytes=0)
    for parts in (2, 3):  # an odd number leaves one part over at the first level of the tree
        spread = cluster_moments(stream, workers, groups=8, seed=5, parts=parts)
        np.testing.assert_allclose(spread.groups, alone.groups, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(
            spread.covariance, X.astype(float).T @ X.astype(float), rtol=1e-10, atol=1e-7
        )
        assert spread.rows == len(X)


def test_only_files_that_can_be_read_from_the_middle():
    with pytest.raises(InvalidInputError, match="cannot be read from the middle"):
        cluster_moments(array_stream(np.eye(2)), "tcp://127.0.0.1:1")
