"""``xmp.shutdown()``: the templates of this process end; launches that run do not."""

from __future__ import annotations

import pytest

from tests.support.stage import Stage

HEAD = """
    import os, sys, time
    import in_script, xmp

    def work(rank):
        while not os.path.exists("go"):
            time.sleep(0.005)
        return [rank, in_script.template_above()]

    def go():
        open("go", "w").close()

    def alive():
        return in_script.called("xmp-template")
"""


def test_it_does_nothing_before_the_first_launch(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        xmp.shutdown()
        in_script.say(engine=[name for name in sys.modules if "_processes" in name])
    """
    )
    assert stage.run(source).said == {"engine": []}


def test_it_waits_until_an_idle_template_has_ended(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        go()
        for _ in range(2):
            first = xmp.spawn(work, nprocs=2, runtime="cpu")[0][1]
            assert alive() == [first]
            xmp.shutdown()
            assert in_script.belongings()["processes"] == []
            xmp.shutdown()
        xmp.preload("json")
        xmp.shutdown()
        in_script.say(left=in_script.belongings()["processes"])
    """
    )
    assert stage.run(source).said == {"left": []}


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_launch_that_runs_goes_on(stage: Stage, method: str) -> None:
    """Its template ends with it; a launch that comes meanwhile gets another one."""
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        options = dict(nprocs=2, runtime="cpu", start_method=sys.argv[1])
        context = xmp.spawn(work, join=False, **options)
        replicas = context.pids()
        xmp.shutdown()
        assert all(map(in_script.is_alive, replicas))
        go()
        other = xmp.spawn(work, **options)
        results = context.results()
        xmp.shutdown()
        in_script.say(
            ranks=[each[0] for each in (*results, *other)],
            same=results[0][1] == other[0][1],
            left=in_script.belongings()["processes"],
        )
    """
    )
    said = stage.run(source, method).said
    assert said["ranks"] == [0, 1, 0, 1]
    assert said["left"] == []
    if method == "forkserver":
        assert not said["same"]


def test_a_launch_that_begins_meanwhile_gets_its_template(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        import threading
        go()
        done = threading.Event()
        def shut():
            while not done.wait(0.004):
                xmp.shutdown()
        thread = threading.Thread(target=shut)
        thread.start()
        ranks = [each[0] for _ in range(4) for each in xmp.spawn(work, nprocs=2, runtime="cpu")]
        done.set()
        thread.join()
        xmp.shutdown()
        in_script.say(ranks=ranks, left=in_script.belongings()["processes"])
    """
    )
    assert stage.run(source).said == {"ranks": [0, 1] * 4, "left": []}


def test_it_is_harmless_in_a_replica(stage: Stage) -> None:
    source = (
        HEAD
        + """
    def ends(rank):
        xmp.shutdown()
        return rank

    if __name__ == "__main__":
        in_script.say(ranks=list(xmp.spawn(ends, nprocs=2, runtime="cpu")), templates=len(alive()))
    """
    )
    assert stage.run(source).said == {"ranks": [0, 1], "templates": 1}
