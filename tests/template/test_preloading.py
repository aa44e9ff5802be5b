"""What launcher and replicas have imported is preloaded for the next launch, if it is harmless."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.odd_packages import packages
from tests.support.stage import Outcome, Stage
from xmp._processes.template.preloading import Candidates
from xmp._words.types import ForkRules

pytestmark = pytest.mark.failing

BAD = ("threadone", "crashone", "hangone", "connectone", "deviceone", "exitone")

SCRIPT = """
    import os, sys, time
    import in_script, xmp
    from xmp._plan import planner

    planner.DEVICE_FILES = (*planner.DEVICE_FILES, os.environ["STAND_IN"])
    NAMES = sys.argv[1].split(",")

    def look(rank, use=()):
        had = [name for name in (*NAMES, "lazyone") if name in sys.modules]
        for name in use:
            __import__(name)
        return {"had": had, "forked": in_script.forked(), "wrote": "HEAVY_WROTE" in os.environ,
                "template": in_script.template_above()}

    def spawn(*args):
        return list(xmp.spawn(look, args, nprocs=2, runtime="cpu"))[0]

    def below(pid):
        return {in_script.comm(each) for each in in_script.descendants(pid)} - {""}

    if __name__ == "__main__":
        os.environ["USERS_LAUNCHER"] = str(os.getpid())
        first = spawn()
        for name in NAMES:
            __import__(name)
        os.environ.pop("HEAVY_WROTE", None)
        second = spawn(["lazyone"])
        wanted = {*(sys.argv[2].split(",") if sys.argv[2] else ()), "lazyone"}
        end, found = time.monotonic() + 15, second
        while not wanted <= set(found["had"]) and time.monotonic() < end:
            time.sleep(0.1)  # while it is idle, the template tries
            found = spawn()
        later, template = [spawn() for _ in range(3)][-1], found["template"]
        end = time.monotonic() + 10  # forks of the template, trials and spares, come and go
        while not below(template) <= {"xmp-script", "xmp-spare"} and time.monotonic() < end:
            time.sleep(0.01)
        in_script.say(
            first=first, second=second, found=found, later=later,
            threads=len(os.listdir(f"/proc/{template}/task")),
            below=sorted(below(template) - {"xmp-spare"}),
            templates=[first["template"], template],
        )
"""


def launch(
    stage: Stage, names: str, good: str, file: bool = False, source: str = SCRIPT
) -> Outcome:
    site = packages(stage)
    (stage.folder / "accel7").touch()
    env = {
        "PYTHONUSERBASE": str(stage.folder / "base"),
        "USERS_SITE": site,
        "USERS_LOG": str(stage.folder / "log"),
        "USERS_CRASH": "1",
        "PYTHONUNBUFFERED": "",  # so that what an import prints stays in a buffer
        "STAND_IN": str(stage.folder / "accel7"),
        "PYTHONPATH": stage.environment()["PYTHONPATH"] + ":" + site,
    }
    return stage.run(source, names, good, env=env, timeout=60, file=file)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """What a program said that loads what is harmless, and which processes have imported what."""

    file: bool
    said: dict[str, Any]
    log: list[str]

    def importers(self, name: str) -> set[str]:
        return {pid for package, pid in map(str.split, self.log) if package == name}


@pytest.fixture(scope="module", params=[False, True], ids=["cell", "file"])
def loaded(request: pytest.FixtureRequest, shared_stage: Stage) -> Loaded:
    folder = shared_stage.folder / str(request.param)
    folder.mkdir()
    said = launch(Stage(folder), "heavyone,goodone", "heavyone,goodone", request.param).said
    return Loaded(request.param, said, (folder / "log").read_text().splitlines())


def test_what_the_launcher_has_loaded_is_there_at_a_later_spawn(loaded: Loaded) -> None:
    said = loaded.said
    assert said["first"]["had"] == []
    assert said["later"]["had"] == ["heavyone", "goodone", "lazyone"]
    assert said["later"]["forked"]
    first, last = said["templates"]
    assert first == last == said["later"]["template"]


def test_what_its_import_wrote_is_undone_before_the_fork(loaded: Loaded) -> None:
    assert loaded.said["found"]["had"] == ["heavyone", "goodone", "lazyone"]
    assert not loaded.said["found"]["wrote"]


def test_what_a_replica_imported_is_a_candidate(loaded: Loaded) -> None:
    assert "lazyone" not in loaded.said["second"]["had"]
    assert "lazyone" in loaded.said["found"]["had"]
    # In the two replicas of the second spawn, then in a trial and in the process that asked for it:
    # the template, and with a script its holder too.
    assert len(loaded.importers("lazyone")) == 4 + 2 * loaded.file


ODD = """
    import sys, time
    import in_script, xmp

    ODD = "odd-one.v17-0 0"  # as rich has unicode17-0-0

    def look(rank):
        had = [name for name in (ODD, "threadone", "goodone") if name in sys.modules]
        for name in (ODD, "threadone", "goodone") if rank == 0 and not had else ():
            __import__(name)
        return had

    if __name__ == "__main__":
        end, had = time.monotonic() + 15, []
        while len(had) < 2 and time.monotonic() < end:
            had = xmp.spawn(look, nprocs=2, runtime="cpu")[1]
            time.sleep(0.1)  # while it is idle, the template tries
        in_script.say(had=had)
"""


def test_a_module_may_have_any_name(stage: Stage) -> None:
    """It is tried as any other is, and so is the one behind it that is not harmless."""
    outcome = launch(stage, "", "", source=ODD)
    assert outcome.code == 0, outcome.err
    assert outcome.said["had"] == ["odd-one.v17-0 0", "goodone"]


@pytest.mark.parametrize(("bad", "file"), [(BAD, False), (("threadone",), True)])
def test_what_is_not_harmless_is_never_taken(
    stage: Stage, bad: tuple[str, ...], file: bool
) -> None:
    """Each ends a trial, and what is behind it is tried next."""
    said = launch(stage, ",".join((*bad, "goodone")), "goodone", file).said
    assert said["later"]["had"] == ["goodone", "lazyone"], said
    assert said["later"]["forked"]
    assert said["threads"] == 1
    assert set(said["below"]) <= {"xmp-script"}


def test_what_a_trial_left_running_is_ended(stage: Stage) -> None:
    said = launch(stage, "forkone,goodone", "goodone").said
    assert "goodone" in said["later"]["had"]
    assert set(said["below"]) <= {"xmp-script"}


def test_what_is_offered_during_a_trial_is_tried_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("offered_first", "offered_later"):
        (tmp_path / f"{name}.py").touch()
    candidates = Candidates()

    def harmless(later: tuple[str, ...] = ()) -> list[str]:
        trial = candidates.begin_trial(os.fork)
        candidates.add(later, ForkRules())
        os.waitpid(trial.pid, 0)
        candidates.trial_ended()
        return candidates.take_harmless()

    candidates.add(["offered_first"], ForkRules())
    assert harmless(later=("offered_later",)) == ["offered_first"]
    assert harmless() == ["offered_later"]
    assert not candidates.waiting


BUSY = """
    import os, signal, sys, time
    import in_script, xmp
    from waiting import until

    def note(text):
        with open(os.environ["USERS_LOG"], "a") as log:
            log.write(f"{text} {os.getpid()}\\n")

    def noted():
        return [line.split() for line in open(os.environ["USERS_LOG"])]

    def uses(rank):
        import lazyone
        return os.getpid(), in_script.template_above()

    def waits(rank):
        until(lambda: os.path.exists("go"), 30)
        note("end")

    if __name__ == "__main__":
        said = list(xmp.spawn(uses, nprocs=2, runtime="cpu"))
        running = xmp.spawn(waits, nprocs=2, runtime="cpu", join=False)
        template, users = said[0][1], [pid for pid, _ in said]
        (trial,) = until(lambda: [pid for _, pid in noted() if int(pid) not in users], 30)
        until(lambda: not os.path.exists(f"/proc/{trial}"), 30)
        open("go", "w").close()
        running.join()
        until(lambda: ["lazyone", str(template)] in noted(), 30)
        in_script.say(order=[text for text, _ in noted()])
"""


def test_a_template_imports_nothing_while_a_launch_runs(stage: Stage) -> None:
    """It hears of no end meanwhile: the error of a launch came 5 s late, as JAX was imported."""
    said = launch(stage, "", "", source=BUSY).said
    replicas, trial, template = ["lazyone"] * 2, "lazyone", "lazyone"
    assert said["order"] == [*replicas, trial, "end", "end", template]


def test_what_an_import_prints_is_not_shown_twice(stage: Stage) -> None:
    outcome = launch(stage, "printone,goodone", "goodone")
    assert outcome.out.count("a word of printone") == 1  # the launcher's own import
    assert "a word" not in outcome.err


FOUND = """
            for method in ("forkserver", "spawn", "fork"):
                found = list(xmp.spawn(work, nprocs=2, runtime="cpu", start_method=method))
                in_script.say(**{method: found})
"""
BODY = """
        import os, in_script, xmp
        xmp.preload("json")

        def work(rank):
            return [os.getpid(), in_script.descendants(os.getppid())]
"""
IMPORTED_AGAIN = {
    "script": f"""{BODY}
        if __name__ == "__main__":{FOUND}""",
    "module": f"""
        import in_script, xmp
        from usershelper import work
        if __name__ == "__main__":{FOUND}""",
    "guard": f"""
        import in_script, xmp
        if __name__ == "__main__":
            from usershelper import work{FOUND}""",
}


@pytest.fixture(scope="module", params=IMPORTED_AGAIN)
def imported_again(request: pytest.FixtureRequest, shared_stage: Stage) -> Outcome:
    shared_stage.write(BODY, "usershelper.py")
    return shared_stage.run(IMPORTED_AGAIN[request.param])


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_preload_that_is_imported_again_starts_nothing(
    imported_again: Outcome, method: str
) -> None:
    """What a file does when it is imported is done in supervisors and replicas once more."""
    found = imported_again.said[method]
    replicas = {pid for pid, _ in found}
    assert len(replicas) == 2
    for _, below in found:
        assert set(below) <= replicas


VENDORED = """
    import os, sys, time
    import in_script, xmp

    SITE = os.environ["USERS_SITE"]
    INNER = os.path.join(SITE, "goodone", "vendored")

    def look(rank):
        return [in_script.template_above(), "goodone" in sys.modules, "twice" in sys.modules]

    if __name__ == "__main__":
        for folder in (SITE, INNER):
            os.makedirs(os.path.join(folder, "twice"), exist_ok=True)
            open(os.path.join(folder, "twice", "__init__.py"), "w").close()
        import goodone
        sys.path.insert(0, INNER)  # as debugpy does, for as long as it imports
        import twice
        sys.path.remove(INNER)
        assert twice.__file__.startswith(INNER)
        end, found = time.monotonic() + 15, []
        while not (found and found[-1][1]) and time.monotonic() < end:
            found.append(xmp.spawn(look, nprocs=1, runtime="cpu", start_method="forkserver")[0])
            time.sleep(0.1)  # while it is idle, the template tries
        found.append(xmp.spawn(look, nprocs=1, runtime="cpu", start_method="forkserver")[0])
        in_script.say(found=found)
"""


def test_a_package_that_another_one_contains_is_not_taken_for_an_installed_one(
    stage: Stage,
) -> None:
    """A template would import the other one of that name, and would not fit the next launch."""
    outcome = launch(stage, "", "", source=VENDORED)
    assert outcome.code == 0, outcome.err
    found = outcome.said["found"]
    assert len({template for template, *_ in found}) == 1
    assert found[-1][1:] == [True, False]


@pytest.mark.slow
def test_installed_packages_are_taken_as_they_are(stage: Stage) -> None:
    """The real thing: scikit-learn and what it brings."""
    source = """
        import sys, time
        import in_script, xmp

        def look(rank):
            return ["sklearn.linear_model" in sys.modules, in_script.forked()]

        if __name__ == "__main__":
            import sklearn.linear_model
            end = time.monotonic() + 30
            found = [[False]]
            while not found[0][0] and time.monotonic() < end:
                found = list(xmp.spawn(look, nprocs=2, runtime="cpu"))
                time.sleep(0.1)
            in_script.say(found=found)
    """
    said = stage.run(source, timeout=60).said
    assert said["found"] == [[True, True]] * 2


WRITES = """
    import in_script, xmp
    xmp.preload("joblib")
    import joblib.parallel

    def fn(rank):
        return in_script.template_above()

    if __name__ == "__main__":
        found = list(xmp.spawn(fn, nprocs=2, runtime="cpu"))
        in_script.say(found=found, templates=in_script.templates())
"""


def test_a_package_that_writes_variables_is_not_imported_twice(stage: Stage) -> None:
    """joblib sets KMP_INIT_AT_FORK, here and in the template, which may not be ready yet."""
    said = stage.run(WRITES, timeout=60).said
    assert len(said["templates"]) == 1
    assert said["found"] == said["templates"] * 2
