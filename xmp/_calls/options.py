"""The options of a launch, a row for each: all that reads, passes on or describes one asks here.

An option is a row of ``OPTIONS`` and a field of what it goes ``into`` (``_words/types.py``). From
the row come its check, its place in the request or in the settings that travel to the supervisor
and to agents of other hosts, the flag and the variable of `xmp run`, its refusal where another
launcher has started the process, and its line in the guide. The signatures of ``spawn`` and
``launch`` stay written out, for type checkers and readers; ``tests/launcher/test_options.py`` holds
them, and the guide, to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from xmp._os import signals
from xmp._words.errors import PlanError
from xmp._words.types import Limits, Observer, Output, Request, Settings

from . import checks
from .call_checks import check_function

if TYPE_CHECKING:
    from xmp._processes import Call

__all__ = [
    "ENGINE",
    "OPTIONS",
    "SPAWN",
    "Asked",
    "Flag",
    "Option",
    "asked",
    "output_of",
    "read",
    "request_of",
]

Given = Mapping[str, Any]
"""Options by name, as the user gave them."""


@dataclass(frozen=True)
class Flag:
    """How `xmp run` takes an option, in argparse's words."""

    metavar: str | None = None
    type: Callable[[str], object] = str
    names: tuple[str, ...] = ()
    """Other names than that of the option: "-n", "--nproc-per-node"."""
    action: Literal["", "append", "store_true", "yes_or_no"] = ""


@dataclass(frozen=True)
class Option:
    """An option of ``spawn`` or ``launch``."""

    name: str
    into: str
    """A field of ``Asked``, or one of the values that it is made of: "limits.hang"."""
    read: Callable[[str, Any], object]
    """Check the value that was given for this name and return it as the field holds it.

    Raises PlanError and TypeError."""
    says: str
    """What it does, in the words of `xmp run --help`."""
    default: object = None
    flag: Flag | None = None
    as_rank: Literal["used", "without effect", "refused"] = "refused"
    """What ``launch`` makes of it in a process that another launcher has started."""
    needs_replica: tuple[Literal["spawn", "run"], ...] = ()
    """Callers that start a process for it even where one replica could be the calling process."""
    over_hosts: str = "the same"
    """What it means where an engine starts several hosts."""

    @property
    def group(self) -> str:
        """What it goes into: "request", "settings", "limits", "output", "observer", "env" …"""
        return self.into.partition(".")[0]

    @property
    def variable(self) -> str:
        """The variable of `xmp run`, where it has one."""
        return f"XMP_RUN_{self.name.upper()}" if self.flag else ""

    def is_given(self, options: Given) -> bool:
        """Return whether the user asks for something by it: None and False ask for nothing."""
        value = options[self.name]
        if value is None or value is False:
            return False
        return self.default is None or value != self.default


def _any(name: str, value: Any) -> Any:
    return value


_SECONDS = Flag("SECONDS", float)
_OF_EACH = "of each host"
_BOTH: tuple[Literal["spawn", "run"], ...] = ("spawn", "run")

SPAWN = (
    Option(
        "nprocs", "request.nprocs", checks.replicas,
        "replicas on each host (default, and `auto`: one per device); `gpu`: one per GPU; `cpu`: "
        "one per usable core",
        flag=Flag("N", names=("-n", "--nproc-per-node")), as_rank="used", over_hosts=_OF_EACH,
    ),
    Option(
        "daemon", "settings.daemon", checks.yes_or_no,
        "end the replicas when this process ends instead of waiting for them",
        default=False, as_rank="without effect",
    ),
    Option(
        "start_method", "settings.start_method", checks.start_method,
        "forkserver: forks of a warm process (default); spawn: fresh interpreters",
        flag=Flag("forkserver|spawn"), as_rank="without effect", needs_replica=_BOTH,
        over_hosts='not "fork"',
    ),
    Option(
        "runtime", "request.runtime", checks.text,
        "the runtime, such as cuda or cpu (default: xmp chooses)",
        flag=Flag(), as_rank="used",
    ),
    Option(
        "devices", "request.devices", checks.positions,
        'which devices: positions among the visible ones, as in "0,2" (default: all)',
        flag=Flag(), needs_replica=("spawn",), over_hosts=_OF_EACH,
    ),
    Option(
        "backend", "request.backend", checks.text,
        "form the process group with it before the script starts, as in gloo, nccl or auto",
        flag=Flag(), as_rank="used",
    ),
    Option(
        "env", "env", checks.variables, "a variable for the replicas; may be repeated",
        flag=Flag("NAME=VALUE", action="append"), needs_replica=("spawn",), over_hosts=_OF_EACH,
    ),
    Option(
        "seed", "settings.seed", checks.random_seed,
        "seed random, numpy and torch, alike in every replica",
        flag=Flag(type=int), as_rank="used",
    ),
    Option(
        "threads", "request.threads", checks.whole_number,
        "native threads of each replica (default: an equal share of the cores)",
        flag=Flag("N", int), over_hosts=_OF_EACH,
    ),
    Option(
        "bind", "request.bind", checks.binding, "pin each replica to its own cores or NUMA node",
        flag=Flag("cores|numa"), needs_replica=_BOTH, over_hosts=_OF_EACH,
    ),
    Option(
        "start_timeout", "limits.start", checks.nanoseconds, "limit until every script has begun",
        flag=_SECONDS, needs_replica=_BOTH, over_hosts="None: 300 s for the hosts to come",
    ),
    Option(
        "timeout", "limits.total", checks.nanoseconds, "limit for the whole run",
        flag=_SECONDS, needs_replica=_BOTH,
    ),
    Option(
        "hang_timeout", "limits.hang", checks.nanoseconds_of_a_hang, "limit without any progress",
        flag=_SECONDS, needs_replica=_BOTH,
    ),
    Option(
        "grace", "settings.grace", checks.seconds_of_grace, "from SIGTERM to SIGKILL (default: 5)",
        default=5.0, flag=_SECONDS, as_rank="without effect",
    ),
    Option(
        "max_restarts", "settings.max_restarts", checks.count_from_zero,
        "how often to start all replicas again after a failure (default: 0)",
        default=0, flag=Flag("N", int), needs_replica=_BOTH,
        over_hosts="a lost host is started again; of Ray, another one",
    ),
    Option(
        "log_dir", "output.log_dir", checks.folder, "write a file for each rank and stream there",
        flag=Flag("FOLDER"), needs_replica=_BOTH, over_hosts="a folder on each host",
    ),
    Option(
        "prefix", "output.prefix", checks.prefix,
        'text before each line: "[{rank}] ", or yes for that (default: none; over hosts of '
        """--engine "[{host}:{rank}] ", and '' for none)""",
        flag=Flag("TEXT"), needs_replica=_BOTH, over_hosts='None: "[{host}:{rank}] "',
    ),
    Option(
        "show", "output.show", checks.ranks, 'whose output is shown: all, none, "0,2-3"',
        flag=Flag("RANKS"), needs_replica=_BOTH,
    ),
    Option(
        "progress", "observer.progress", checks.progress, "show how far the start is",
        flag=Flag(action="yes_or_no"), needs_replica=("run",),
    ),
    Option(
        "events", "observer.events", checks.events,
        "append each change of state as a line of JSON",
        flag=Flag("FILE"), needs_replica=("run",),
    ),
)  # fmt: skip
"""Options of ``spawn``, in the order of its signature, but for those that say what is called."""
ENGINE = (
    Option(
        "hosts", "hosts", _any,
        "hosts of --engine: names for ssh (a,user@b:2222) and slurm, a number, a TPU slice "
        "(v6e:4x4), or ids of Ray's nodes",
        flag=Flag(),
    ),
    Option(
        "engine", "engine", _any,
        "start all hosts from here: by ssh, by srun in a Slurm allocation, those of a Ray cluster "
        "(RAY_ADDRESS; default: this machine's), or 127.0.0.2 and up, played by this machine",
        flag=Flag("ssh|slurm|ray|local"),
    ),
    Option(
        "runtime_env", "prepared.runtime_env", _any,
        """what Ray prepares on the hosts: '{"working_dir": "."}' sends this folder""",
        flag=Flag("JSON|FILE"),
    ),
    Option(
        "python", "prepared.python", _any,
        "the interpreter on hosts of ssh and slurm (default: the path of this one)",
        flag=Flag("PATH"),
    ),
    Option(
        "cwd", "prepared.cwd", _any,
        "the working folder on hosts of ssh and slurm (default: the path of this one)",
        flag=Flag("FOLDER"),
    ),
    Option(
        "copy_env", "prepared.copy_env", _any,
        "variables of this process for replicas on hosts of ssh and slurm, as in 'WANDB_*'; may "
        "be repeated",
        flag=Flag("PATTERN", action="append"),
    ),
    Option(
        "ssh_options", "prepared.ssh_options", _any,
        "words for ssh, as in '-o ProxyJump=gate'; may be repeated",
        flag=Flag("WORDS", action="append"),
    ),
    Option(
        "gather_logs", "output.gather", checks.yes_or_no,
        "with --engine: bring the files of all hosts to --log-dir on this machine",
        default=False, flag=Flag(action="store_true"),
    ),
)  # fmt: skip
"""Options of ``launch`` beside them, for hosts of an engine."""
OPTIONS = (*SPAWN, *ENGINE)
_REQUEST = tuple(each for each in SPAWN if each.group in ("request", "env"))
_OUTPUT = tuple(each for each in OPTIONS if each.group == "output")
_DEFAULTS = {each.name: each.default for each in OPTIONS}


@dataclass(frozen=True)
class Asked:
    """A call of a public function with all values checked, and nothing begun."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    join: bool
    request: Request
    """Without ``env`` and the world, which may need a plan: ``requested`` adds them."""
    settings: Settings
    observer: Observer
    env: Given | Callable[[int], Given] | None
    given: tuple[Option, ...]
    """The options that ask for something."""
    hosts: Any = None
    engine: Any = None
    prepared: Mapping[str, Any] = field(default_factory=dict)
    """How an engine prepares its hosts, by the names of the options."""

    @property
    def prepared_for(self) -> list[str]:
        """The options given that only an engine takes."""
        return [name for name, value in self.prepared.items() if value is not None]

    def requested(self, **fields: Any) -> Request:
        """Return the request, with these fields of it. Raises PlanError and TypeError."""
        return _with_environment(replace(self.request, **fields), self.env)

    def call(self) -> Call:
        """Return what the engine launches."""
        from xmp._processes import Call  # not in a process that launches nothing

        return Call(self.fn, self.args, self.kwargs, self.settings, self.observer)


def asked(fn: Any, args: Any, kwargs: Any = None, join: bool = True, **options: Any) -> Asked:
    """Check a call with these options; those that are left out have their defaults."""
    return read({"fn": fn, "args": args, "kwargs": kwargs, "join": join, **options})


def read(values: Given) -> Asked:
    """Check the values of a whole signature. Raises PlanError and TypeError."""
    fn, args, kwargs = values["fn"], values["args"], values["kwargs"]
    check_function(fn, args, kwargs)
    checks.yes_or_no("join", values["join"])
    options = {name: values.get(name, default) for name, default in _DEFAULTS.items()}
    fields = _fields(OPTIONS, options)
    output = _output(fields.pop("output"), options)
    limits = Limits(**fields.pop("limits"))
    settings = fields.pop("settings")
    return Asked(
        fn=fn,
        args=args,
        kwargs=kwargs or {},
        join=values["join"],
        request=_request(fields.pop("request")),
        settings=Settings(**settings, limits=None if limits == Limits() else limits, output=output),
        observer=Observer(**fields.pop("observer")),
        given=tuple(each for each in OPTIONS if each.is_given(options)),
        **fields,
    )


def request_of(**options: Any) -> Request:
    """Check options that say what is launched, and where. Raises PlanError and TypeError."""
    fields = _fields(_REQUEST, {**_DEFAULTS, **options})
    return _with_environment(_request(fields["request"]), fields["env"])


def output_of(**options: Any) -> Output | None:
    """Check options that say where output goes. Raises PlanError and TypeError."""
    options = {**_DEFAULTS, **options}
    return _output(_fields(_OUTPUT, options)["output"], options)


def _fields(rows: Iterable[Option], options: Given) -> dict[str, Any]:
    """Read each option into the field where it goes."""
    found: dict[str, Any] = {}
    for each in rows:
        group, dot, field = each.into.partition(".")
        place = found.setdefault(group, {}) if dot else found
        place[field or group] = each.read(each.name, options[each.name])
    return found


def _request(fields: dict[str, Any]) -> Request:
    """Make a request; ``nprocs=-1`` is None, and devices alone say how many replicas."""
    count, devices = fields["nprocs"], fields["devices"]
    if devices is not None and count in (None, -1):
        count = len(devices)
    return Request(**{**fields, "nprocs": None if count == -1 else count})


def _output(fields: dict[str, Any], options: Given) -> Output | None:
    """Return where the replicas' output goes; None where there is nothing to do about it."""
    over_hosts = options["engine"] is not None
    output = Output(**fields, by_host=over_hosts and options["prefix"] is None)
    if output.gather and not over_hosts:
        raise PlanError(
            "gather_logs=True without engine=: the log files of this host are in log_dir= anyway. "
            "Give engine= and hosts=, or leave gather_logs= out",
            code="XMP-P02",
        )
    if output.gather and output.log_dir is None:
        raise PlanError(
            "gather_logs=True without log_dir=: it brings the files of log_dir= from the hosts to "
            "this machine. Give log_dir=, or leave gather_logs= out",
            code="XMP-P02",
        )
    return None if output == Output() else output


# --- variables ------------------------------------------------------------------------------------


def _with_environment(request: Request, env: Any) -> Request:
    """Add the variables of ``env``; a function of the local rank is called for each replica."""
    if env is None:
        return request
    each = _of_each_rank(request, env) if callable(env) else [env]
    return replace(request, env=tuple(tuple(sorted(one.items())) for one in each))


def _of_each_rank(request: Request, env: Callable[[int], object]) -> list[Mapping[str, str]]:
    from .host import plan_for

    count = len(plan_for(request, None).hosts[0].replicas)
    with signals.as_usual():
        each = [env(local) for local in range(count)]
    return [checks.mapping("env", one) for one in each]
