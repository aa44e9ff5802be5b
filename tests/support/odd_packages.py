"""Installed packages of which each does one odd thing when it is imported."""

from __future__ import annotations

import sys

from tests.support.stage import Stage

__all__ = ["packages"]

PACKAGES = {
    "heavyone": """
        import os
        with open(os.environ["USERS_LOG"], "a") as log:
            log.write(f"heavyone {os.getpid()}\\n")
        os.environ["HEAVY_WROTE"] = "1"
    """,
    "threadone": """
        import threading
        threading.Thread(target=threading.Event().wait, daemon=True, name="threadone").start()
    """,
    "crashone": """
        import os
        open_in = open("/proc/self/comm").read().strip()
        if "USERS_CRASH" in os.environ and not os.environ.get("USERS_LAUNCHER") == str(os.getpid()):
            os.abort()
    """,
    "hangone": """
        import os, signal
        while os.environ.get("USERS_LAUNCHER") != str(os.getpid()):
            signal.pause()
    """,
    "forkone": """
        import os, signal
        if os.environ.get("USERS_LAUNCHER") != str(os.getpid()) and os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    signal.pause()
            os._exit(0)
    """,
    "connectone": """
        import os, socket
        server = socket.create_server(("127.0.0.1", 0))
        PEER = socket.create_connection(server.getsockname())
    """,
    "deviceone": """
        import os
        HELD = open(os.environ["STAND_IN"])
    """,
    "printone": """
        print("a word of printone")
    """,
    "exitone": """
        import os
        if os.environ.get("USERS_LAUNCHER") != str(os.getpid()):
            raise SystemExit(3)
    """,
    "lazyone": """
        import os
        with open(os.environ["USERS_LOG"], "a") as log:
            log.write(f"lazyone {os.getpid()}\\n")
    """,
    "goodone": "",
}


def packages(stage: Stage) -> str:
    """A folder that counts as installed: the user site of another base.

    ``sitecustomize`` runs at every interpreter's start and shortens the real deadline.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = stage.folder / "base" / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    stage.write(
        "from xmp._processes.template import preloading\npreloading._SECONDS = 2.0\n",
        str((site / "sitecustomize.py").relative_to(stage.folder)),
    )
    (site / "odd-one").mkdir()
    for name in ("__init__", "v17-0 0"):
        (site / "odd-one" / f"{name}.py").touch()
    for name, source in PACKAGES.items():
        (site / name).mkdir()
        stage.write(source, str((site / name / "__init__.py").relative_to(stage.folder)))
    return str(site)
