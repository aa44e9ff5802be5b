"""Arguments and results of hundreds of megabytes between a driver and hosts of Ray."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.ray_cluster import RayCluster
from tests.support.stage import Stage, slowness

pytestmark = pytest.mark.ray

BEGIN = """
import contextlib, logging, os, signal, sys, threading, time
import numpy, psutil, ray, xmp
from in_script import say, parent
from waiting import until

OPTIONS = dict(engine="ray", hosts=2, nprocs=2, runtime="cpu", progress=False)

def open_files(pid):
    \"\"\"Bytes of each memory file of xmp that a process has open, as far as it is filled.\"\"\"
    found = {}
    with contextlib.suppress(OSError):  # it has ended
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/fd/{name}"
                if os.readlink(path).startswith("/memfd:xmp-"):
                    found[os.stat(path).st_ino] = os.stat(path).st_blocks * 512
    return found

def arrived(pid):
    return sum(open_files(pid).values())

def memory_files(pid="self"):
    \"\"\"Bytes of each memory file of xmp that a process has open or mapped.\"\"\"
    found = open_files(pid)
    with contextlib.suppress(OSError):
        for line in open(f"/proc/{pid}/maps"):
            if "/memfd:xmp-" in line:
                begin, end = (int(each, 16) for each in line.split()[0].split("-"))
                inode = int(line.split()[4])
                found[inode] = max(found.get(inode, 0), end - begin)
    return found

def own_memory():
    \"\"\"Private memory and memory files of this process, in bytes.\"\"\"
    for line in open("/proc/self/status"):
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024 + sum(memory_files().values())

class Peak(threading.Thread):
    def __enter__(self):
        self.over, self.before = threading.Event(), own_memory()
        self.most = self.before
        self.start()
        return self

    def run(self):
        while not self.over.wait(0.01):
            self.most = max(self.most, own_memory())

    def __exit__(self, *_):
        self.over.set()
        self.join()

    @property
    def grown(self):
        return self.most - self.before

def references():
    \"\"\"More objects of Ray than the actors, once their last answers have come.\"\"\"
    def more():
        worker = ray._private.worker.global_worker.core_worker
        return max(0, len(worker.get_all_reference_counts()) - 2)
    with contextlib.suppress(TimeoutError):
        until(lambda: not more(), 5)
    return more()

def elsewhere():
    \"\"\"The processes of this cluster that have memory files of more than 1 MB.\"\"\"
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = os.environ["RAY_TMPDIR"] in " ".join(process.environ().values())
            if ours and process.pid != os.getpid():
                files = [size for size in memory_files(process.pid).values() if size > 1_000_000]
                if files:
                    found.append((process.name(), files))
    return found

def ended(call):
    begin = time.monotonic()
    try:
        call()
    except xmp.XmpError as error:
        return {"error": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - begin}

def again():
    return list(xmp.launch(lambda rank: rank, **OPTIONS))

if __name__ == "__main__":
    ray.init(log_to_driver=False, logging_level=logging.WARNING)
"""


LARGE = """
SIZE = 300_000_000

def result(rank):
    return numpy.full(SIZE // 8, float(rank))

def argument(rank, array, *, again):
    array[rank] = -1.0
    assert again is array  # as it was in the call
    return [float(array[0]), float(array[-1]), int((array[:4] < 0).sum())]

if __name__ == "__main__":
    with Peak() as peak:
        begin = time.monotonic()
        results = xmp.launch(result, **OPTIONS)
        seconds = time.monotonic() - begin
    arrays = [each for each in results]
    say(peak=peak.grown / (4 * SIZE), seconds=seconds)
    results[3][0] = 7.0  # writable, and this process's alone
    say(values=[[float(each[0]), float(each[-1])] for each in results])
    del results, arrays
    say(files=memory_files(), references=references())
    array = numpy.full(SIZE // 8, 1.5)
    with Peak() as peak:
        begin = time.monotonic()
        results = xmp.launch(argument, (array,), kwargs={"again": array}, **OPTIONS)
        seconds = time.monotonic() - begin
    say(argument=list(results), own=float(array[0]), argument_peak=peak.grown / SIZE)
    say(argument_seconds=seconds, argument_references=references(), argument_files=memory_files())
    with contextlib.suppress(TimeoutError):
        until(lambda: not elsewhere(), 5)
    say(elsewhere=elsewhere())
    del array
"""


def test_arrays_larger_than_the_store(said: dict[str, Any]) -> None:
    assert said["values"] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [7.0, 3.0]]
    assert 0.9 < said["peak"] <= 1.1
    assert said["argument"] == [[-1.0, 1.5, 1], [1.5, 1.5, 1], [1.5, 1.5, 1], [1.5, 1.5, 1]]
    assert said["own"] == 1.5
    assert 0.9 < said["argument_peak"] <= 1.1  # the image, beside the array itself
    assert said["files"] == said["argument_files"] == {}
    assert (said["references"], said["argument_references"]) == (0, 0)
    assert said["elsewhere"] == []


UNKNOWN = """
def of_that_host(rank, folder):
    if rank != 2:
        return rank
    sys.path.append(folder)
    with open(f"{folder}/of_that_host.py", "w") as file:
        file.write("class Known:\\n    pass\\n")
    import of_that_host
    return of_that_host.Known()

if __name__ == "__main__":
    unknown = ended(lambda: xmp.launch(of_that_host, (sys.argv[1],), **OPTIONS))
    say(unknown={**unknown, "again": again()})
"""


def test_a_result_that_does_not_load_in_the_driver(said: dict[str, Any]) -> None:
    text = "rank 2's result cannot be loaded here: ModuleNotFoundError: No module named"
    assert f"{text} 'of_that_host'" in said["unknown"]["error"]
    assert said["unknown"]["again"] == [0, 1, 2, 3]


GONE = """
def of_rank_2(rank):
    return numpy.full(400_000_000 // 8, float(rank)) if rank == 2 else rank

def half_read():
    links = [each.pid for each in psutil.Process().children() if each.name() == "xmp-link"]
    return any(100_000_000 < arrived(pid) < 390_000_000 for pid in links)

def goes(number):
    job = xmp.launch(of_rank_2, join=False, **OPTIONS)
    host = parent(job.hosts[1].pid)
    until(half_read, 60)
    os.kill(host if number == signal.SIGSTOP else parent(host), number)
    return {**ended(job.join), "files": memory_files(), "again": again()}

if __name__ == "__main__":
    say(SIGKILL=goes(signal.SIGKILL))
    say(SIGSTOP=goes(signal.SIGSTOP))
"""


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_a_host_is_gone_while_its_result_is_read(said: dict[str, Any], number: str) -> None:
    found, slow = said[number], said["slow"]
    assert found["error"].startswith("HostLost: host 1 "), said
    assert number == "SIGSTOP" or found["seconds"] < (2 + 5) * slow  # with the grace of the others
    assert found["files"] == {}
    assert found["again"] == [0, 1, 2, 3]


NEVER_THERE = """
def last(rank, array):
    return float(array[-1])

def kill():
    def receives():
        return [each for each in hosts if 0 < arrived(each) < 390_000_000]
    os.kill(parent(until(receives, 60)[0]), signal.SIGKILL)

if __name__ == "__main__":
    job = xmp.launch(lambda rank: rank, join=False, **OPTIONS)
    hosts = [parent(host.pid) for host in job.hosts]
    job.join()
    thread = threading.Thread(target=kill)
    thread.start()
    never = ended(lambda: xmp.launch(last, (numpy.full(50_000_000, 1.5),), **OPTIONS))
    thread.join()
    with contextlib.suppress(TimeoutError):
        until(lambda: not memory_files(), 5)
    say(never={**never, "files": memory_files(), "again": again()})
"""


def test_a_host_is_gone_while_it_gets_an_argument(said: dict[str, Any]) -> None:
    found = said["never"]
    assert found["error"].startswith("HostLost: host "), said
    assert found["seconds"] < (2 + 5 + 3) * said["slow"]
    assert found["files"] == {}
    assert found["again"] == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def said(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one driver has found."""
    stage = Stage(tmp_path_factory.mktemp("driver"))
    (stage.folder / "modules").mkdir()
    slow = slowness()
    source = BEGIN + LARGE + UNKNOWN + NEVER_THERE + GONE
    driver = stage.start(source, str(stage.folder / "modules"), env=cluster.env)
    outcome = stage.outcome(driver, 300)
    assert outcome.code == 0, outcome
    stage.gone()
    return {**outcome.said, "slow": slow}
