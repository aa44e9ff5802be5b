"""A script that leaves threads or devices open as it loads: replicas are started by exec."""

from __future__ import annotations

import socket

import pytest

from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

SPAWN = """
    def work(rank):
        return [in_script.forked(), rank]

    if __name__ == "__main__":
        for name in ("first", "second"):
            in_script.say(**{name: list(xmp.spawn(work, nprocs=2, runtime="cpu"))})
            os.write(2, f"--after {name}--\\n".encode())
        in_script.say(left=in_script.belongings()["processes"])
        try:
            fork = list(xmp.spawn(work, nprocs=2, runtime="cpu", start_method="fork"))
        except xmp.StartError as error:
            fork = str(error)
        in_script.say(fork=fork)
"""

THREAD = """
    import os, threading, time, in_script, xmp
    threading.Thread(target=threading.Event().wait, name="users-own", daemon=True).start()
"""

NATIVE = """
    import os, ctypes, time, in_script, xmp
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_ulong()
    # pause() as a thread's function: a thread that Python does not know
    assert libc.pthread_create(ctypes.byref(number), None, libc.pause, None) == 0
    while in_script.tasks() < 2:
        time.sleep(0.001)
    libc.pthread_setname_np(number, b"users-native")
"""

CONNECTED = """
    import os, socket, in_script, xmp
    PEER = socket.create_connection(("127.0.0.1", int(os.environ["USERS_PORT"])))
"""

IMPORTED = """
    import os, in_script, xmp, users_module
"""

DEVICE = """
    import os, in_script, xmp
    from xmp._plan import planner
    planner.DEVICE_FILES = (*planner.DEVICE_FILES, os.environ["STAND_IN"] + "*")
    HELD = open(os.environ["STAND_IN"] + "0")
"""

DRIVER = """
    import os, in_script, xmp
    from xmp._plan import planner
    # Stands in for cuDeviceGetCount(): getpid() never answers what "not initialised" would be.
    planner.DRIVER_PROBES = (("libmissing.so.1", "any", 3), ("libc.so.6", "getpid", 3))
"""

NO_DRIVER = """
    import os, in_script, xmp
    from xmp._plan import planner
    planner.DRIVER_PROBES = (("libmissing.so.1", "any", 3), ("libc.so.6", "isatty", 0))
"""

QUIET = """
    import os, in_script, xmp
    LOADING = os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")
"""

THREADED_MODULE = """
    import threading
    threading.Thread(target=threading.Event().wait, name="modules-own", daemon=True).start()
"""


def check(stage: Stage, head: str, *named: str, **env: str) -> Outcome:
    """Two launches with the default method; the program goes on with one by fork."""
    outcome = stage.run(head + SPAWN, env=env, timeout=60)
    for name in ("first", "second"):
        assert outcome.said[name] == [[False, 0], [False, 1]]
    before, _, after = outcome.err.partition("--after first--")
    said = [line for line in before.splitlines() if "fresh interpreters" in line]
    assert len(said) == 1, outcome.err
    for word in named:
        assert word in said[0]
    assert "fresh interpreters" not in after
    assert outcome.said["left"] == ["xmp-template"]
    return outcome


def test_thread_at_module_level(stage: Stage) -> None:
    """Python threads of the launcher do not stop ``start_method="fork"``; native ones do."""
    outcome = check(stage, THREAD, "users-own")
    assert outcome.said["fork"] == [[True, 0], [True, 1]]
    assert "users-own" in outcome.err.partition("--after second--")[2], "a note"


def test_thread_of_an_imported_module(stage: Stage) -> None:
    stage.write(THREADED_MODULE, "users_module.py")
    check(stage, IMPORTED, "modules-own")


def test_native_thread(stage: Stage) -> None:
    outcome = check(stage, NATIVE, "users-native")
    assert "users-native" in outcome.said["fork"], "refused by name"


def test_device_file(stage: Stage) -> None:
    (stage.folder / "accel0").write_text("")
    file = str(stage.folder / "accel0")
    outcome = check(stage, DEVICE, file, STAND_IN=str(stage.folder / "accel"))
    assert file in outcome.said["fork"], "refused by name"


def test_connected_socket(stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check(stage, CONNECTED, f"127.0.0.1:{port}", USERS_PORT=str(port))


def test_driver_that_says_it_is_initialised(stage: Stage) -> None:
    check(stage, DRIVER, "driver libc.so.6")


def test_driver_that_is_not_mapped_or_not_initialised(stage: Stage) -> None:
    source = (
        NO_DRIVER
        + """
    def work(rank):
        return in_script.forked()

    if __name__ == "__main__":
        in_script.say(done=list(xmp.spawn(work, nprocs=2, runtime="cpu")))
    """
    )
    assert stage.run(source).said["done"] == [True, True]


def test_quiet_variables_are_there_while_loading_only(stage: Stage) -> None:
    """``torch.cuda.is_available()`` at module level must not initialise the driver."""
    source = (
        QUIET
        + """
    def work(rank):
        return [LOADING, os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")]

    if __name__ == "__main__":
        in_script.say(done=list(xmp.spawn(work, nprocs=2, runtime="cpu")))
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"
        in_script.say(own=list(xmp.spawn(work, nprocs=2, runtime="cpu")))
        in_script.say(launcher=[LOADING, os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"]])
    """
    )
    said = stage.run(source).said
    assert said["done"] == [["1", None]] * 2
    assert [each[1] for each in said["own"]] == ["0", "0"]
    assert said["launcher"] == [None, "0"]


def test_thread_made_while_an_argument_loads(stage: Stage) -> None:
    """The script itself is harmless; loading the call is not."""
    source = """
        import os, threading, in_script, xmp

        class Starts:
            def __getstate__(self):
                return {"any": 1}

            def __setstate__(self, state):
                threading.Thread(
                    target=threading.Event().wait, name="arguments-own", daemon=True
                ).start()

        def work(rank, starts):
            return in_script.forked()

        def harmless(rank):
            return in_script.forked()

        if __name__ == "__main__":
            for name in ("first", "second"):
                in_script.say(**{
                    name: list(xmp.spawn(work, (Starts(),), nprocs=2, runtime="cpu"))
                })
                os.write(2, f"--after {name}--\\n".encode())
            in_script.say(harmless=list(xmp.spawn(harmless, nprocs=2, runtime="cpu")))
    """
    outcome = stage.run(source, timeout=60)
    assert outcome.said == {"first": [False] * 2, "second": [False] * 2, "harmless": [True] * 2}
    before, _, after = outcome.err.partition("--after first--")
    assert before.count("fresh interpreters") == 1
    assert "arguments-own" in before
    assert "fresh interpreters" not in after


def test_a_template_that_is_killed_while_the_call_is_found_unsafe(stage: Stage) -> None:
    """The line that says so is the last thing before the template is asked again."""
    source = """
        import os, signal, sys, threading, time, in_script, xmp

        class Starts:
            def __getstate__(self):
                return {"any": 1}

            def __setstate__(self, state):
                threading.Thread(target=threading.Event().wait, daemon=True).start()

        class Errors:
            def write(self, text):
                if "fresh interpreters" in text:
                    (template,) = in_script.called("xmp-template")
                    os.kill(template, signal.SIGKILL)
                    while in_script.is_alive(template):
                        time.sleep(0.001)
                return len(text)

            def flush(self):
                pass

        def work(rank, starts):
            return in_script.forked()

        if __name__ == "__main__":
            sys.stderr = Errors()
            in_script.say(forked=list(xmp.spawn(work, (Starts(),), nprocs=2, runtime="cpu")))
            xmp.shutdown()
            in_script.say(left=in_script.belongings()["processes"])
    """
    assert stage.run(source).said == {"forked": [False] * 2, "left": []}
