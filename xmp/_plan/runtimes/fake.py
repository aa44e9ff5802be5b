"""Pretend chips with their own variables, ports and bounds: a device runtime without a device.

Test suites use it to see what xmp gives the replicas of a device runtime; ``xmp.testing`` is its
public side.
"""

from __future__ import annotations

from xmp._plan.numbers import is_number
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, PortNeed, Request

from ._base import Fit, Job, Place, Runtime, Share

__all__ = ["Fake"]

CHIPS = "FAKE_CHIPS"  # "8": how many chips the host pretends to have
VISIBLE = "FAKE_VISIBLE_CHIPS"  # "0,2": a mask on input, one chip on output
BOUNDS = "FAKE_PROCESS_BOUNDS"  # "2,4,1"
ADDRESSES = "FAKE_PROCESS_ADDRESSES"  # "127.0.0.1:8476,127.0.0.1:8477"
PORT = "FAKE_PROCESS_PORT"  # "8476"
SHAPES = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}
FIRST_PORT = 8476


class Fake(Runtime):
    """Chips that tile only into 1, 2, 4 or 8 processes."""

    name = "fake"
    framework = "xmp._inside.frameworks.torch_dist"
    automatic = False
    for_tests = True
    store = True
    default_backend = "gloo"
    backends = ("gloo",)
    inputs = (CHIPS,)
    owned = (VISIBLE, BOUNDS, ADDRESSES, PORT)

    def possible(self, facts: HostFacts) -> str:
        return f"{CHIPS}={facts.env[CHIPS]}" if CHIPS in facts.env else ""

    def visible(self, facts: HostFacts) -> tuple[str, ...]:
        text = facts.env.get(CHIPS, "4")
        if not is_number(text) or int(text) < 1:
            raise PlanError(
                f"{CHIPS}={text!r} is not a number of chips. Use 1, 2, 4 or 8.", code="XMP-P07"
            )
        chips = tuple(str(chip) for chip in range(int(text)))
        mask = facts.env.get(VISIBLE)
        if not mask:
            return chips
        return tuple(part for part in mask.split(",") if part in chips)

    def fit(self, facts: HostFacts, request: Request, hosts: int) -> Fit:
        count = len(self.visible(facts))
        allowed = tuple(n for n in SHAPES if n <= count)
        if not allowed:
            raise PlanError(
                f"{VISIBLE}={facts.env.get(VISIBLE)!r} leaves no chip. Unset it.", code="XMP-P07"
            )
        return Fit(allowed[-1], allowed, f"{count} pretend chips", f"Set {CHIPS} for more.")

    def needs(self, job: Job) -> tuple[PortNeed, ...]:
        return tuple(_need(place, i) for place in job.places for i in range(job.local))

    def share(self, job: Job, place: Place, local: int) -> Share:
        port = job.port(_need(place, local))
        peers = [f"127.0.0.1:{job.port(_need(place, i))}" for i in range(job.local)]
        chip = self.chosen(job, place)[local]
        given = {
            VISIBLE: chip,
            BOUNDS: SHAPES[job.local],
            ADDRESSES: ",".join(peers),
            PORT: str(port),
        }
        return Share(given, f"fake:{chip}", {"device_type": "cpu"})


def _need(place: Place, local: int) -> PortNeed:
    name = f"process.{place.index}.{local}"
    return PortNeed(name, "hold", documented=FIRST_PORT + local, host=place.index)
