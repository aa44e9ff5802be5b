"""What a Ray cluster has given away: a program that ``say``s it for each line of standard input.

``lent``: CPUs that something holds, on all nodes; ``groups``: placement groups that exist.
"""

from __future__ import annotations

import sys
from typing import Any

from tests.support.in_script import say

__all__: list[str] = []


def lent() -> dict[str, Any]:
    import ray

    total, free = ray.cluster_resources(), ray.available_resources()
    table = ray.util.placement_group_table()
    states = [group["state"] for group in table.values() if group["state"] != "REMOVED"]
    return {"lent": total.get("CPU", 0) - free.get("CPU", 0), "groups": states}


def main() -> None:
    import ray

    ray.init(logging_level=40, log_to_driver=False)
    for _ in iter(sys.stdin.readline, ""):
        say(**lent())


if __name__ == "__main__":
    main()
