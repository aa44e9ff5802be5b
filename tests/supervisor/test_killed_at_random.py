"""Any process of xmp may be killed or stopped at any time: nothing hangs, nothing stays."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from tests.support.stage import Stage

pytestmark = pytest.mark.failing

SCRIPT = """
    import os, sys, time
    import in_script, xmp

    def work(rank):
        time.sleep(0.02)
        return rank

    if __name__ == "__main__":
        method, seconds = sys.argv[1], float(sys.argv[2])
        end = time.monotonic() + seconds
        good, bad, longest = 0, {}, 0.0
        in_script.say(begun=True)
        while time.monotonic() < end or good + sum(bad.values()) < 11 or not os.path.exists("hit"):
            start = time.monotonic()
            try:
                assert list(xmp.spawn(work, nprocs=3, runtime="cpu", start_method=method,
                                      grace=0.5)) == [0, 1, 2]
                good += 1
            except xmp.XmpError as error:
                key = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"
                bad[key] = bad.get(key, 0) + 1
            longest = max(longest, time.monotonic() - start)
        open("calm", "w").close()
        while not os.path.exists("last"):
            time.sleep(0.01)
        in_script.say(good=good, bad=bad, longest=longest)
        in_script.say(last=list(xmp.spawn(work, nprocs=3, runtime="cpu", start_method=method)))
        xmp.shutdown()
        in_script.say(left=in_script.belongings())
"""


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_kills_at_random(stage: Stage, method: str) -> None:
    chance = random.Random(int(os.environ.get("CHAOS_SEED", "5")))
    process = stage.start(SCRIPT, method, "2.5")
    kills = 0
    while not (stage.folder / "calm").exists() and process.poll() is None:
        time.sleep(chance.random() * 0.15)
        victims = sorted(pid for pid in stage.alive() if pid != process.pid)
        if victims and not (stage.folder / "calm").exists():
            try:
                os.kill(chance.choice(victims), signal.SIGKILL)
                kills += 1
                if kills > 3:
                    (stage.folder / "hit").touch()
            except ProcessLookupError:
                pass
    (stage.folder / "last").touch()
    outcome = stage.outcome(process, 60)
    assert outcome.code == 0, outcome.err
    said = outcome.said
    assert kills > 3
    assert said["good"] + sum(said["bad"].values()) > 10
    assert said["longest"] < 20
    assert said["last"] == [0, 1, 2]
    assert said["left"]["processes"] == []
    assert said["left"]["threads"] == 1
    stage.gone()
