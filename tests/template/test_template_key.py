"""What a template's key contains, what it must not, and what each call sends instead."""

from __future__ import annotations

import pytest

from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

HEAD = """
    import json, os, resource, signal, sys, time
    import in_script, xmp

    def look(rank):
        return {
            "forked": in_script.forked(),
            "cwd": os.getcwd(),
            "path": "/users-own" in sys.path,
            "argv": sys.argv[1:],
            "env": {name: os.environ.get(name) for name in NAMES},
            "umask": os.umask(0o022),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "cores": len(os.sched_getaffinity(0)),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "core_size": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "hup": signal.getsignal(signal.SIGHUP) == signal.SIG_IGN,
            "blocked": sorted(int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            "ids": [*os.getresuid(), *os.getresgid()],
            "groups": os.getgroups(),
            "net": os.readlink("/proc/self/ns/net"),
            "hash": hash("word"),
            "stdin": os.readlink("/proc/self/fd/0"),
            "template": in_script.template_above(),
        }

    NAMES = ("MASTER_PORT", "PWD", "COLUMNS", "RANK", "XLA_FLAGS", "OMP_NUM_THREADS",
             "JAX_ENABLE_X64", "USERS_OWN", "TPU_VISIBLE_CHIPS")

    def spawn(name, nprocs=2, **options):
        results = list(xmp.spawn(look, nprocs=nprocs, runtime="cpu", **options))
        in_script.say(**{name: results[-1], name + "_templates": in_script.templates()})

    def until_two(name):
        while len(in_script.templates()) > 2:
            time.sleep(0.01)
        in_script.say(**{name: in_script.templates()})
"""

WARM = (
    HEAD
    + """
    if __name__ == "__main__":
        spawn("start")
        spawn("nprocs", 4)
        for name, value in (("MASTER_PORT", "1234"), ("PWD", "/nowhere"), ("COLUMNS", "77"),
                            ("RANK", "3"), ("XLA_FLAGS", "--xla_dump_to="), ("USERS_OWN", "1"),
                            ("OMP_NUM_THREADS", "1"), ("TPU_VISIBLE_CHIPS", "2")):
            os.environ[name] = value
            spawn(name)
        del os.environ["USERS_OWN"]
        spawn("removed")
        os.chdir("/usr")
        spawn("cwd")
        sys.path.append("/users-own")
        spawn("path")
        sys.argv.append("users-word")
        spawn("argv")
        os.umask(0o027)
        spawn("umask")
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        spawn("cores")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 4096))
        spawn("limits")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        spawn("signals")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        spawn("nice")
"""
)


@pytest.fixture(scope="module")
def warm(shared_stage: Stage) -> Outcome:
    return shared_stage.run(WARM, timeout=60)


STEPS = (
    "nprocs", "MASTER_PORT", "PWD", "COLUMNS", "RANK", "XLA_FLAGS", "USERS_OWN", "OMP_NUM_THREADS",
    "TPU_VISIBLE_CHIPS", "removed", "cwd", "path", "argv", "umask", "cores", "limits", "signals",
    "nice",
)  # fmt: skip


@pytest.mark.parametrize("step", STEPS)
def test_it_costs_no_new_template(warm: Outcome, step: str) -> None:
    assert warm.said[f"{step}_templates"] == warm.said["start_templates"]
    assert warm.said[step]["template"] == warm.said["start"]["template"]
    assert warm.said[step]["forked"]


@pytest.mark.parametrize(
    ("step", "what", "value"),
    [
        ("cwd", "cwd", "/usr"), ("path", "path", True), ("argv", "argv", ["users-word"]),
        ("umask", "umask", 0o027), ("cores", "cores", 1), ("limits", "files", 300),
        ("limits", "core_size", 0), ("signals", "hup", True), ("signals", "blocked", [10]),
        ("nice", "nice", 5), ("start", "stdin", "/dev/null"), ("start", "path", False),
        ("start", "hup", False), ("start", "blocked", []),
    ],
)  # fmt: skip
def test_replicas_have_what_the_launcher_has_now(
    warm: Outcome, step: str, what: str, value: object
) -> None:
    assert warm.said[step][what] == value


def test_variables_are_those_of_the_call(warm: Outcome) -> None:
    said = warm.said
    for name, value in (("PWD", "/nowhere"), ("COLUMNS", "77"), ("USERS_OWN", "1")):
        assert said["start"]["env"][name] != value
        assert said[name]["env"][name] == value
    assert said["removed"]["env"]["USERS_OWN"] is None
    assert said["RANK"]["env"]["RANK"] == "1"  # the replica's own, not the launcher's


COLD = (
    HEAD
    + """
    if __name__ == "__main__":
        spawn("start")
        os.environ["JAX_ENABLE_X64"] = "1"
        spawn("x64")
        spawn("x64_again")
        del os.environ["JAX_ENABLE_X64"]
        spawn("back")
        os.environ["PYTHONHASHSEED"] = "7"
        spawn("hash")
        until_two("two")
        spawn("hash_again")
"""
)


@pytest.fixture(scope="module")
def cold(shared_stage: Stage) -> Outcome:
    return shared_stage.run(COLD, timeout=60)


def test_a_changed_import_variable_needs_another_template(cold: Outcome) -> None:
    said = cold.said
    assert said["x64"]["template"] != said["start"]["template"]
    assert said["x64"]["env"]["JAX_ENABLE_X64"] == "1"
    assert said["x64_again"]["template"] == said["x64"]["template"]
    assert said["hash"]["template"] not in (said["start"]["template"], said["x64"]["template"])
    assert said["hash_again"]["template"] == said["hash"]["template"]
    assert said["hash_again"]["hash"] == said["hash"]["hash"] != said["start"]["hash"]


def test_the_first_template_is_used_again_when_the_variable_is_back(cold: Outcome) -> None:
    assert cold.said["back"]["template"] == cold.said["start"]["template"]
    assert cold.said["back"]["env"]["JAX_ENABLE_X64"] is None


def test_at_most_two_templates_live(cold: Outcome) -> None:
    assert len(cold.said["back_templates"]) == 2
    assert len(cold.said["two"]) == 2
    assert len(cold.said["hash_again_templates"]) == 2


CHANGES = {
    "user": "os.setresuid(65534, 0, 0)",  # the real one: this interpreter's file may be root's
    "group": "os.setresgid(65534, 65534, 65534)",
    "groups": "os.setgroups([4711])",
    "capability": "assert ctypes.CDLL(None).prctl(24, 22, 0, 0, 0) == 0",  # bounding set: sys_boot
}


@pytest.mark.root
@pytest.mark.parametrize("what", CHANGES)
def test_other_rights_need_another_template(stage: Stage, what: str) -> None:
    """A replica must not keep the rights that its launcher has given up."""
    source = f"""
    {HEAD}
    import ctypes

    def rights(rank):
        with open("/proc/self/status") as status:
            lines = [line.split() for line in status]
        names = ("Uid:", "Gid:", "Groups:", "CapBnd:")
        found = {{line[0]: line[1:] for line in lines if line[0] in names}}
        return [found, in_script.template_above()]

    if __name__ == "__main__":
        for name in ("before", "after", "again"):
            if name == "after":
                {CHANGES[what]}
            own = rights(0)[0]
            in_script.say(**{{name: [own, *list(xmp.spawn(rights, nprocs=2, runtime="cpu"))[1]]}})
    """
    said = stage.run(source).said
    for name in ("before", "after", "again"):
        own, replicas, _ = said[name]
        assert replicas == own
    assert said["after"][0] != said["before"][0]
    assert said["after"][2] != said["before"][2]
    assert said["again"][2] == said["after"][2] != 0


@pytest.mark.netns
def test_another_namespace_needs_another_template(stage: Stage) -> None:
    source = (
        HEAD
        + """
    if __name__ == "__main__":
        import ctypes, fcntl, socket, struct
        spawn("host")
        assert ctypes.CDLL(None).unshare(0x40000000) == 0  # CLONE_NEWNET
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # lo up
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))
        spawn("inner")
        in_script.say(own=os.readlink("/proc/self/ns/net"))
    """
    )
    said = stage.run(source).said
    assert said["inner"]["net"] == said["own"] != said["host"]["net"]
    assert said["inner"]["template"] != said["host"]["template"]


def test_a_forked_child_of_the_launcher_has_templates_of_its_own(stage: Stage) -> None:
    """Two processes on one socket would corrupt its stream."""
    source = (
        HEAD
        + """
    def many(name):
        found = [list(xmp.spawn(look, nprocs=2, runtime="cpu"))[0] for _ in range(8)]
        in_script.say(**{name: sorted({each["template"] for each in found})})

    if __name__ == "__main__":
        spawn("start")
        pid = os.fork()
        if pid == 0:
            try:
                many("child")
                xmp.shutdown()
            finally:
                os._exit(0)
        many("parent")
        in_script.say(code=os.waitpid(pid, 0)[1])
        spawn("end")
    """
    )
    said = stage.run(source).said
    assert said["parent"] == [said["start"]["template"]] == [said["end"]["template"]]
    assert len(said["child"]) == 1
    assert said["child"] != said["parent"]


def test_the_template_sees_neither_script_folder_nor_cwd(stage: Stage) -> None:
    """A user's ``random.py`` must not shadow the standard library's there."""
    shadow = """
        import os
        with open("imported", "a") as log:
            log.write(f"{{os.getpid()}}\\n")
        with open(os.__file__.replace("os.py", "{}.py")) as real:
            exec(compile(real.read(), real.name, "exec"))
    """
    for name in ("tty", "random", "selectors", "traceback"):
        stage.write(shadow.format(name), f"{name}.py")
    source = """
        import os, random, in_script, xmp

        def work(rank):
            return rank

        if __name__ == "__main__":
            in_script.say(done=list(xmp.spawn(work, nprocs=2, runtime="cpu")))
            in_script.say(own=os.getpid(), templates=in_script.templates())
    """
    said = stage.run(source).said
    assert said["done"] == [0, 1]
    importers = {int(pid) for pid in (stage.folder / "imported").read_text().split()}
    assert said["own"] in importers
    assert not importers & set(said["templates"])


def test_a_file_with_the_name_of_a_frozen_module_shadows_nothing(stage: Stage) -> None:
    """Python never imports a user's ``os.py``: replicas have one ``os``, with the environment."""
    stage.write("", "os.py")
    source = """
        import os, posixpath, in_script, xmp

        def work(rank):
            import os
            return os is posixpath.os

        if __name__ == "__main__":
            in_script.say(one=list(xmp.spawn(work, nprocs=2, runtime="cpu")))
    """
    assert stage.run(source).said["one"] == [True, True]


def test_a_package_from_elsewhere_needs_another_template(stage: Stage) -> None:
    """Two installations of one name: replicas must have the launcher's."""
    for version in ("one", "two"):
        (stage.folder / version / "moving").mkdir(parents=True)
        stage.write(f"VERSION = {version!r}", f"{version}/moving/__init__.py")
    source = """
    import os, sys
    import in_script, xmp

    def look(rank):
        import moving
        return [moving.VERSION, in_script.template_above(), in_script.forked()]

    def use(version):
        sys.modules.pop("moving", None)
        others = [os.path.abspath(each) for each in ("one", "two")]
        sys.path[:] = [p for p in sys.path if p not in others]
        sys.path.insert(0, os.path.abspath(version))
        import moving
        xmp.preload("moving")
        in_script.say(**{version: list(xmp.spawn(look, nprocs=2, runtime="cpu"))})

    if __name__ == "__main__":
        use("one")
        use("two")
    """
    said = stage.run(source).said
    assert {each[0] for each in said["one"]} == {"one"}
    assert {each[0] for each in said["two"]} == {"two"}
    assert said["one"][0][1] != said["two"][0][1]
