"""What a variable costs that has changed between launches: it depends on who wrote and read it."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

PACKAGES = {
    "heavyone": """
        import os
        with open(os.environ["USERS_LOG"], "a") as log:
            log.write(f"heavyone {os.getpid()}\\n")
    """,
    "writesone": "import os; os.environ['KMP_USERS_OWN'] = '1'",
    "writesthread": """
        import os, threading
        os.environ["KMP_USERS_THREAD"] = "1"
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    """,
    "readsone": "import os; VALUE = os.environ.get('KMP_USERS_OWN')",
    "setsone": "import os\ndef by_call():\n    os.environ['KMP_USERS_CALL'] = '1'",
    "sweeps": """
        import os
        FIRST = dict(os.environ), os.environ.copy(), {**os.environ}
        LATER = {name: value for name, value in os.environ.items() if name.startswith("SWEEPS_")}
    """,
    "readsseed": """
        import os
        AT_IMPORT = os.environ.get("USERS_SEED")

        def ask():
            return os.environ.get("USERS_SEED")
    """,
}


def run(stage: Stage, source: str, file: bool = True) -> Outcome:
    """Run it where ``PACKAGES`` are installed: in the user site of another base."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = stage.folder / "base" / "lib" / version / "site-packages"
    for name, text in PACKAGES.items():
        stage.write(text, str((site / name / "__init__.py").relative_to(stage.folder)))
    env = {
        "PYTHONUSERBASE": str(stage.folder / "base"),
        "PYTHONPATH": stage.environment()["PYTHONPATH"] + f":{site}",
        "USERS_LOG": str(stage.folder / "log"),
        "XMP_LOG": "debug",
    }
    return stage.run(source, env=env, timeout=60, file=file)


WRITTEN = """
    import os, sys
    import in_script, xmp

    def look(rank):
        return {
            "template": in_script.template_above(), "forked": in_script.forked(),
            "written": os.environ.get("KMP_USERS_OWN"),
            "read": getattr(sys.modules.get("readsone"), "VALUE", None),
        }

    def spawn(name):
        found = list(xmp.spawn(look, nprocs=2, runtime="cpu"))[0]
        in_script.say(**{name: found, f"{name}_templates": in_script.templates()})

    if __name__ == "__main__":
        xmp.preload("heavyone")
        spawn("first")
        import writesone
        spawn("written")
        import writesthread
        spawn("thread")
        xmp.preload("readsone")
        spawn("read")
        with open(os.environ["USERS_LOG"]) as log:
            in_script.say(heavy=len(log.readlines()))
        import setsone
        setsone.by_call()
        spawn("call")
        del os.environ["KMP_USERS_CALL"]
        os.environ["KMP_USERS_OWN"] = "2"
        spawn("hand")
"""


@pytest.mark.parametrize("file", [False, True])
def test_what_an_import_has_written_costs_no_template_and_what_the_program_sets_one(
    stage: Stage, file: bool
) -> None:
    said = run(stage, WRITTEN, file).said
    for name in ("written", "thread", "read"):
        assert said[f"{name}_templates"] == said["first_templates"] == [said["first"]["template"]]
        assert said[name]["template"] == said["first"]["template"]
        assert said[name]["forked"]
        assert said[name]["written"] == "1"
    assert said["heavy"] == 1
    if not file:  # the process with the script is there already, and takes no more
        assert said["read"]["read"] == "1"  # what the template imports later sees it, as here
    templates = {said[name]["template"] for name in ("first", "call", "hand")}
    assert len(templates) == 3
    assert said["hand"]["written"] == "2"
    assert len(said["hand_templates"]) <= 2


SWEEP = """
    import os
    import in_script, xmp
    {reads}

    with open(os.environ["USERS_LOG"], "a") as log:
        log.write(__name__ + "\\n")

    def look(rank):
        return os.environ["USERS_SEED"]

    if __name__ == "__main__":
        for seed in "123":
            os.environ["USERS_SEED"] = seed
            assert list(xmp.spawn(look, nprocs=2, runtime="cpu")) == [seed, seed]
"""
ONCE: tuple[str, ...] = ("import sweeps", "import readsseed", "import json")
AGAIN = {
    "script": 'SEED = os.environ.get("USERS_SEED")',
    "all": "SEED = dict(os.environ).get('USERS_SEED')",
    "call": "import readsseed; SEED = readsseed.ask()",
    "helper": "import usershelper",
}


def imports_of_script(stage: Stage, reads: str) -> tuple[list[str], str]:
    stage.write("import os\nSEED = os.getenv('USERS_SEED')", "usershelper.py")
    ended = run(stage, SWEEP.replace("{reads}", reads))
    return (stage.folder / "log").read_text().split(), ended.err


@pytest.mark.parametrize("reads", ONCE)
def test_a_script_is_not_imported_again_for_what_a_library_has_read(
    stage: Stage, reads: str
) -> None:
    imports, log = imports_of_script(stage, reads)
    assert imports == ["__main__", "__mp_main__"]
    assert "is imported again" not in log
    assert ("USERS_SEED has changed; only libraries have read it" in log) == ("seed" in reads)


@pytest.mark.parametrize("who", AGAIN)
def test_a_script_is_imported_again_for_what_its_own_modules_have_read(
    stage: Stage, who: str
) -> None:
    """Also by a function of a library that they call while they are imported."""
    imports, log = imports_of_script(stage, AGAIN[who])
    assert imports == ["__main__", *["__mp_main__"] * 3]
    file = "usershelper.py" if who == "helper" else "script"
    lines = [line for line in log.splitlines() if "is imported again: USERS_SEED has" in line]
    assert len(lines) == 2
    assert all(file in line.rpartition("which ")[2] for line in lines), lines


def test_env_of_a_launch_counts_also_where_a_library_reads_it(stage: Stage) -> None:
    """What ``env=`` sets is for the replicas, and what the program sets may be its own."""
    source = """
        import in_script, xmp, readsseed

        def look(rank):
            return readsseed.AT_IMPORT

        if __name__ == "__main__":
            found = [xmp.spawn(look, nprocs=1, runtime="cpu", start_method="forkserver",
                               env={"USERS_SEED": seed})[0] for seed in "12"]
            in_script.say(found=found)
    """
    said: dict[str, Any] = run(stage, source).said
    assert said["found"] == ["1", "2"]
    assert "USERS_SEED" not in os.environ
