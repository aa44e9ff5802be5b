"""The lines about a start that takes long, or took long."""

from __future__ import annotations

import pytest

from xmp._processes.messages.timeline import StartTimeline, Timeline, slow_start
from xmp._processes.report.stack_texts import not_in_function
from xmp._processes.system.interpreter import package_folder

SECOND = 1_000_000_000


def taking(seconds: int) -> StartTimeline:
    """The start of one replica whose loading took all of that."""
    end = (1 + seconds) * SECOND
    timeline = Timeline(SECOND, SECOND, end, end, end, end, end, end)
    return StartTimeline({0: timeline}, (("torch", 2.0),))


def test_a_quick_start_needs_no_words() -> None:
    assert slow_start(taking(4)) == ""
    assert slow_start(StartTimeline({})) == ""


def test_a_slow_start_names_its_largest_parts() -> None:
    line = slow_start(taking(6))
    assert line.startswith(
        "the start took 6.0 s: script and call loaded 6.0 s (in it: import torch 2"
    )


def test_a_slow_start_of_a_replica_that_has_not_returned() -> None:
    """Its own times come with its result; the supervisor's are known."""
    timeline = Timeline(SECOND, SECOND, SECOND, SECOND, 0, 0, 7 * SECOND, 0)
    line = "the start took 6.0 s: rendezvous and own imports 6.0 s"
    assert slow_start(StartTimeline({0: timeline})) == line


def test_the_first_start_says_how_to_begin_early() -> None:
    ready = 8 * SECOND
    timeline = Timeline(SECOND, ready, ready, ready, ready, ready, ready, ready)
    assert slow_start(StartTimeline({0: timeline})) == (
        "the start took 7.0 s: imports that later launches share 7.0 s. "
        'To begin them earlier, put xmp.preload("torch"), with the packages that the program '
        "imports, at its top"
    )
    assert "preload" not in slow_start(taking(6))


def test_xmp_run_has_no_program_that_could_begin_early() -> None:
    ready = 8 * SECOND
    timeline = Timeline(SECOND, ready, ready, ready, ready, ready, ready, ready)
    imports = ("xmp._inside.frameworks.torch_dist", 5.0), ("torch", 4.5)
    assert slow_start(StartTimeline({0: timeline}, imports), program=True) == (
        "the start took 7.0 s: imports that all replicas share 7.0 s (in it: import torch 4.5 s)"
    )


PLACES = {
    "the program's import": (
        ('"<frozen importlib._bootstrap>", line 1 in _call', '"/x/train.py", line 3 in <module>'),
        'importing (File "/x/train.py", line 3 in <module>)',
    ),
    "the mesh": (
        (f'"{package_folder}_inside/frameworks/torch_dist.py", line 9 in enter',),
        "starting the runtime and joining the others (File ",
    ),
    "an argument": (
        (
            '"/x/data.py", line 2 in __setstate__',
            f'"{package_folder}_payload/loading.py", line 9 in load',
        ),
        'loading the function and its arguments (File "/x/data.py", line 2 in __setstate__)',
    ),
    "elsewhere": (
        ('"/x/train.py", line 3 in main',),
        'starting (File "/x/train.py", line 3 in main)',
    ),
    "only in Python's own": (
        ('"<frozen importlib._bootstrap>", line 1 in _call',),
        'starting (File "<frozen importlib._bootstrap>", line 1 in _call)',
    ),
    "nowhere": ((), "starting (no stack)"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_replica_that_is_not_in_the_function_is_somewhere(name: str) -> None:
    frames, words = PLACES[name]
    text = "Current thread 0x1 (most recent call first):\n"
    text += "".join(f"  File {each}\n" for each in frames)
    line = not_in_function({2: text}, 3, 30 * SECOND)
    said = "xmp: after 30 s 1 of 3 replicas have not reached the function: rank 2: "
    assert line.startswith(f"{said}{words}")
    assert line.endswith("\n")


def test_replicas_in_the_same_place_are_listed_together() -> None:
    here = 'Current thread 0x1 (most recent call first):\n  File "/x/train.py", line 3 in main\n'
    stacks = {0: here, 1: here, 2: here.replace("main", "other")}
    first, second = not_in_function(stacks, 3, 30).rstrip().partition("function: ")[2].split("; ")
    assert first == 'ranks 0-1: starting (File "/x/train.py", line 3 in main)'
    assert second == 'rank 2: starting (File "/x/train.py", line 3 in other)'
