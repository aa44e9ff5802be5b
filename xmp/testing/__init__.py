"""Help for tests of programs that launch: recorded hosts to plan for, and pretended chips.

::

    import xmp
    import xmp.testing

    def test_my_program_fits_the_hosts_of_kaggle():
        facts = xmp.testing.recorded_facts("kaggle-v5e-8")
        assert xmp.plan(8, facts=facts).world_size == 8

    def test_each_replica_has_a_chip_of_its_own():
        with xmp.testing.fake_chips(2):
            assert xmp.spawn(chip, runtime="fake") == ["0", "1"]

docs/guide/testing.md has more, on pytest, coverage.py and pytest-xdist.

Tests: ``tests/testing``.
"""

from __future__ import annotations

from ._chips import fake_chips
from ._recorded import RECORDED, recorded_facts

__all__ = ["RECORDED", "fake_chips", "recorded_facts"]

for _name in ("fake_chips", "recorded_facts"):
    globals()[_name].__module__ = __name__  # what tracebacks and reprs show
