"""Test a program that launches, also for hosts and chips that are not here: ``pytest``."""

import pytest
from six_lines import share

import xmp
from xmp.testing import fake_chips, recorded_facts


def test_all_of_the_data_is_used():
    results = xmp.spawn(share, args=([1, 2, 4, 8, 16],), nprocs=2, runtime="cpu")
    assert list(results) == [21, 10]


def test_a_replica_for_each_chip():
    with fake_chips(4):  # no such chips are needed, nor a driver
        assert len(xmp.spawn(share, args=([],), runtime="fake")) == 4


@pytest.mark.parametrize(("host", "count"), [("kaggle-v5e-8", 8), ("kaggle-t4x2", 2)])
def test_a_replica_for_each_device_of_a_host(host, count):
    assert xmp.plan(facts=recorded_facts(host)).world_size == count


def test_what_does_not_fit_is_refused_before_it_starts():
    with pytest.raises(xmp.PlanError, match="nprocs=8"):
        xmp.plan(8, facts=recorded_facts("colab-v5e-1"))


def test_a_failure_is_the_programs_own():
    with pytest.raises(xmp.ReplicaRaised, match=r"rank \d of 2") as caught:
        xmp.spawn(share, args=(None,), nprocs=2, runtime="cpu", timeout=60)
    assert isinstance(caught.value.__cause__, TypeError)
