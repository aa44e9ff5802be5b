"""The line about a start that took long."""

from __future__ import annotations

from xmp._processes.messages.timeline import StartTimeline, Timeline, slow_start

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
