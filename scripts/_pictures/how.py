"""The drawings of docs/guide/how-it-works.md: processes, start methods, ports, hosts."""

from __future__ import annotations

from boxes import Arrow, Box, Drawing, Group

PROCESSES = Drawing(
    "The processes of a launch",
    columns=((20, 190), (400, 93), (503, 93), (606, 94)),
    gap=54,
    boxes=(
        Box("launcher", "launcher|your program or notebook:|calls xmp.spawn||"
            "reads the host, plans,|holds the ports", 0, 0, rows=3, look="xmp"),
        Box("template", "xmp-template|has imported torch, JAX …; one thread,|"
            "no device; stays between launches", 1, 0, columns=3),
        Box("script", "xmp-script|the template and the script's own imports", 1, 1, columns=3),
        Box("supervisor", "xmp-supervisor|loads function and arguments once,|"
            "watches all replicas", 1, 2, columns=3),
        Box("first", "replica 0|your function", 1, 3, look="xmp"),
        Box("second", "replica 1|your function", 2, 3, look="xmp"),
        Box("last", "… replica 7|your function", 3, 3, look="xmp"),
    ),
    arrows=(
        Arrow("launcher", "template", "starts it once"),
        Arrow("template", "script", "fork, once per script"),
        Arrow("script", "supervisor", "fork, once per launch"),
        Arrow("launcher", "supervisor", "function, arguments", shift=-10),
        Arrow("supervisor", "launcher", "results, failures", shift=24),
        Arrow("supervisor", "first"),
        Arrow("supervisor", "second", "fork"),
        Arrow("supervisor", "last"),
    ),
    note="If the launcher is killed, all of them are gone within a second.|"
    "A launch in a notebook has no xmp-script: its supervisor is a fork of the template.",
)  # fmt: skip

START_METHODS = Drawing(
    "Three start methods",
    columns=((30, 190), (265, 190), (500, 190)),
    gap=48,
    top=92,
    boxes=(
        Box("a0", "your program", 0, 0, look="xmp"),
        Box("b0", "your program", 1, 0, look="xmp"),
        Box("c0", "your program", 2, 0, look="xmp"),
        Box("a1", "template|imports torch, JAX … once", 0, 1),
        Box("b1", "keeper|for this launch alone", 1, 1),
        Box("c1", "keeper|for this launch alone", 2, 1),
        Box("a2", "supervisor|loads function, arguments", 0, 2),
        Box("b2", "supervisor|starts and watches", 1, 2),
        Box("c2", "supervisor|starts and watches", 2, 2),
        Box("a3", "replicas|have it all loaded", 0, 3, look="xmp"),
        Box("b3", "replicas|each imports everything", 1, 3, look="xmp"),
        Box("c3", "replicas|have all globals", 2, 3, look="xmp"),
    ),
    arrows=(
        Arrow("a0", "a1", "fresh|interpreter", dashed=True),
        Arrow("a1", "a2", "fork"),
        Arrow("a2", "a3", "fork"),
        Arrow("b0", "b1", "fresh|interpreter", dashed=True),
        Arrow("b1", "b2", "fork"),
        Arrow("b2", "b3", "fresh|interpreters", dashed=True),
        Arrow("c0", "c1", "fork"),
        Arrow("c1", "c2", "fork"),
        Arrow("c2", "c3", "fork"),
    ),
    groups=(
        Group('"forkserver", the default', 0, 0, rows=4),
        Group('"spawn"', 1, 0, rows=4),
        Group('"fork"', 2, 0, rows=4),
    ),
    note="Before each fork xmp checks that it is safe: threads, devices, sockets. Where it is not,|"
    'the default takes fresh interpreters and says why, and "fork" is refused.',
)  # fmt: skip

PORTS = Drawing(
    "A port is held from the plan until its program has it",
    columns=((34, 148), (202, 148), (370, 148), (538, 148)),
    gap=62,
    top=92,
    boxes=(
        Box("a0", "launcher|looks for a free port|and closes it", 0, 0),
        Box("a1", "another program|takes that port", 1, 0, look="red", dashed=True),
        Box("a2", "rank 0|binds it: address|already in use", 2, 0, look="red"),
        Box("a3", "ranks 1 … 7|meet a stranger,|or wait", 3, 0, look="red"),
        Box("b0", "launcher|binds a port, listens,|keeps the socket", 0, 1, look="xmp"),
        Box("b1", "rank 0|alone inherits|the open socket", 1, 1, look="xmp"),
        Box("b2", "rank 0|serves torch's store|on that socket", 2, 1, look="xmp"),
        Box("b3", "ranks 1 … 7|connect and meet", 3, 1, look="xmp"),
        Box("c0", "launcher|binds a port, shares it|with its own user only", 0, 2, look="xmp"),
        Box("c1", "launcher|keeps the socket,|never listens", 1, 2, look="xmp"),
        Box("c2", "rank 0|JAX's coordinator|binds beside it", 2, 2, look="xmp"),
        Box("c3", "ranks 1 … 7|connect and meet", 3, 2, look="xmp"),
    ),
    arrows=tuple(
        Arrow(f"{lane}{n}", f"{lane}{n + 1}", look="red" if lane == "a" else "xmp")
        for lane in "abc"
        for n in range(3)
    ),
    groups=(
        Group("bind, close and hope: what xmp never does", 0, 0, columns=4),
        Group("xmp: torch's store", 0, 1, columns=4),
        Group("xmp: JAX's coordinator, libtpu (gRPC opens its own socket)", 0, 2, columns=4),
    ),
    note="On one host all of them listen on loopback only.",
)  # fmt: skip

HOSTS = Drawing(
    "A launch on two hosts",
    columns=((34, 116), (160, 116), (444, 116), (570, 116)),
    gap=54,
    top=62,
    boxes=(
        Box("start", "Slurm, kubectl, mpirun, or you|start the same program once on each host",
            0, 0, columns=4),
        Box("a", "launcher|python train.py", 0, 1, columns=2, look="xmp"),
        Box("b", "launcher|python train.py", 2, 1, columns=2, look="xmp"),
        Box("ca", "carrier|coordinator", 1, 2),
        Box("cb", "carrier|member", 2, 2),
        Box("sa", "supervisor|of host 0", 0, 2),
        Box("sb", "supervisor|of host 1", 3, 2),
        Box("ra", "replicas|ranks 0 … 3", 0, 3, columns=2, look="xmp"),
        Box("rb", "replicas|ranks 4 … 7", 2, 3, columns=2, look="xmp"),
    ),
    arrows=(
        Arrow("start", "a"), Arrow("start", "b"),
        Arrow("a", "sa"), Arrow("a", "ca", both=True),
        Arrow("b", "sb"), Arrow("b", "cb", both=True),
        Arrow("cb", "ca", "roll call, beats,|one verdict", both=True),
        Arrow("sa", "ra", "fork"), Arrow("sb", "rb", "fork"),
        Arrow("ra", "rb", "tensors: gloo,|nccl, XLA", "xmp", both=True),
    ),
    groups=(Group("host 0", 0, 1, columns=2, rows=3), Group("host 1", 2, 1, columns=2, rows=3)),
    note="The carriers meet at MASTER_PORT + 1000 of host 0. They carry no data.|"
    "The first failure on any host ends the launch on all; every host raises the same error.",
)  # fmt: skip

DRAWINGS = {
    "how-processes.svg": PROCESSES,
    "how-start-methods.svg": START_METHODS,
    "how-ports.svg": PORTS,
    "how-hosts.svg": HOSTS,
}
