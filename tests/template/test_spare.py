"""The supervisor that is forked ahead of the next launch: one, which disturbs nothing."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.failing

HEAD = """
    import os, signal, sys, time
    import in_script, xmp

    def above(rank):
        return os.getppid()

    def supervisor():
        return set(xmp.spawn(above, nprocs=2, runtime="cpu"))

    def spare():
        while len(in_script.called("xmp-spare")) != 1:
            time.sleep(0.001)
        return in_script.called("xmp-spare")[0]

    def used(times):
        '''How often the spare became the supervisor: one that lacks modules is replaced.'''
        count = 0
        for _ in range(times):
            waiting = spare()
            count += supervisor() == {waiting}
        return count
"""


def test_it_is_the_supervisor_of_the_next_launch(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        in_script.say(first=sorted(supervisor()))
        assert used(6) >= 4
        in_script.say(parent=in_script.comm(in_script.parent(spare())))
        xmp.shutdown()
        in_script.say(left=in_script.called("xmp-spare"))
    """
    )
    said = stage.run(source).said
    assert len(said["first"]) == 1
    assert said["parent"] == "xmp-script"
    assert said["left"] == []


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP", "SIGTERM"])
def test_one_that_was_ended_or_stopped_is_not_missed(stage: Stage, number: str) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        supervisor()
        waiting = spare()
        os.kill(waiting, getattr(signal, sys.argv[1]))
        while sys.argv[1] != "SIGSTOP" and in_script.is_alive(waiting):
            time.sleep(0.001)
        while sys.argv[1] == "SIGSTOP" and in_script.state(waiting) != "T":
            time.sleep(0.001)
        assert supervisor() != {waiting}
        while in_script.is_alive(waiting):
            time.sleep(0.001)
        in_script.say(again=len(supervisor()))
    """
    )
    outcome = stage.run(source, number)
    assert outcome.said["again"] == 1
    assert "does not answer" not in outcome.err  # it is not asked


def test_one_that_lacks_modules_is_replaced(stage: Stage) -> None:
    """What the launcher imports later is tried while idle, and then in the next spare as well."""
    source = (
        HEAD
        + """
    def knows(rank):
        return "pyte" in sys.modules

    if __name__ == "__main__":
        supervisor()
        spare()
        import pyte
        while not xmp.spawn(knows, nprocs=1, runtime="cpu")[0]:
            spare()
        assert used(3) >= 1
    """
    )
    stage.run(source, timeout=60)


def test_it_ends_with_its_launcher(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        supervisor()
        spare()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    )
    stage.outcome(stage.start(source))
    stage.gone()
