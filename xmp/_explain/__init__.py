"""Every code of an error, and a page of advice for each: ``XMP-P03.md`` beside this file.

A code is a kind of failure, not a sentence: errors with one cause and one remedy share it. To add
one: a row here, its page, ``code="…"`` where the error is made, a line in ``docs/errors.md``. A
number that was released is never given another meaning.

Errors carry the code alone (``xmp._words.errors``); the command line imports this.

Tests: ``tests/report/test_codes.py``.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CODES", "Kind"]


class Kind(NamedTuple):
    """A kind of failure."""

    code: str
    title: str
    classes: str
    """The classes of its errors."""


CODES = (
    Kind("XMP-P00", "The request does not fit this host", "PlanError"),
    Kind("XMP-P01", "A value is not allowed", "PlanError"),
    Kind("XMP-P02", "Options that do not go together", "PlanError"),
    Kind("XMP-P03", "The number of replicas or the choice of devices does not fit", "PlanError"),
    Kind("XMP-P04", "xmp does not support this on this platform", "PlanError"),
    Kind("XMP-P05", "env= sets a variable that it must not set", "PlanError"),
    Kind("XMP-P06", "The runtime cannot be used here", "PlanError"),
    Kind("XMP-P07", "A variable that chooses devices is wrong", "PlanError"),
    Kind(
        "XMP-P08",
        "The variables of a launcher are incomplete or contradict each other",
        "PlanError",
    ),
    Kind("XMP-P09", "A launcher has started this process as one of several", "PlanError"),
    Kind("XMP-P10", "This process holds the device", "PlanError"),
    Kind("XMP-P11", "The TPU's chips, workers or slice do not fit together", "PlanError"),
    Kind("XMP-P12", "The process group does not fit the launch", "PlanError"),
    Kind("XMP-P13", "There is no script that can be run", "PlanError, XmpError"),
    Kind("XMP-P14", "A file of log_dir= or events= cannot be written", "PlanError"),
    Kind("XMP-P15", "The model or its options do not fit data_parallel", "PlanError"),
    Kind("XMP-O01", "A port or an address cannot be bound", "PortError, PlanError"),
    Kind("XMP-S01", "The host lacks what a launch needs", "StartError"),
    Kind("XMP-S02", "The script cannot be imported for the replicas", "StartError"),
    Kind("XMP-S03", "The function or its arguments cannot be loaded in the replicas", "StartError"),
    Kind("XMP-S04", "A process of xmp has ended unexpectedly", "StartError"),
    Kind("XMP-S05", "This process cannot be forked", "StartError"),
    Kind("XMP-R01", "The function raised an exception in a replica", "ReplicaRaised, ReplicaError"),
    Kind("XMP-R02", "A replica's process ended without returning", "ReplicaDied"),
    Kind("XMP-R03", "A replica crashed in native code", "ReplicaDied"),
    Kind("XMP-R04", "A replica was killed because memory ran out", "ReplicaDied"),
    Kind("XMP-R05", "A replica was killed by a signal from elsewhere", "ReplicaDied"),
    Kind(
        "XMP-R06",
        "The launch was ended by you or by your program",
        "ReplicaDied, StartError, XmpError",
    ),
    Kind("XMP-R07", "A result cannot be sent or loaded", "ReplicaRaised, XmpError"),
    Kind("XMP-R08", "A replica has lost or misused its connection to xmp", "ReplicaDied"),
    Kind(
        "XMP-R09", "A replica failed before it reached the function", "ReplicaRaised, ReplicaDied"
    ),
    Kind("XMP-T01", "timeout= is over", "ReplicaTimeout"),
    Kind("XMP-T02", "start_timeout= is over", "ReplicaTimeout"),
    Kind("XMP-T03", "No progress for hang_timeout=", "ReplicaTimeout"),
    Kind("XMP-T04", "The ranks diverged", "ReplicaTimeout"),
    Kind("XMP-H01", "Another host of the launch is gone, or has ended it", "HostLost"),
    Kind("XMP-H02", "Not all hosts came to the launch", "StartError"),
    Kind("XMP-H03", "The hosts do not fit together", "PlanError"),
    Kind(
        "XMP-H04",
        "The address of a host is not known, or cannot be used",
        "PlanError, StartError, PortError",
    ),
    Kind("XMP-H05", "Which hosts take part is not said, or not completely", "PlanError"),
    Kind("XMP-H06", "Ray cannot be used", "PlanError, StartError"),
    Kind("XMP-H07", "The Ray cluster does not give the hosts", "PlanError, StartError"),
    Kind(
        "XMP-H08",
        "A host is not reached by ssh or srun, or does not answer",
        "PlanError, StartError",
    ),
    Kind("XMP-X01", "The launch is not this process's, or there is none", "XmpError"),
)
