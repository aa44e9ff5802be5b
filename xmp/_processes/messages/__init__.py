"""The messages between the processes of a launch.

Each message is a NamedTuple whose docstring says when it is sent and which descriptors are sent
with it; ``catalog`` finds its class by its name. A receiver has a table from class to handler
(``catalog.Handlers``), in which mypy checks that a handler takes the message that it is given.

    launcher -> template         fork_server    StartTemplate, ForkSupervisor, StartScriptHolder,
                                                ImportModules, TryModules
    template -> launcher         fork_server    Ready, ModulesImported, Forked, ForkFailed,
                                                ProcessEnded;
                                                a script holder also ForkUnsafe, ImportFailed
    launcher -> supervisor       launch         StartLaunch; Interrupt, Stop, Kill, Pause, Resume,
                                                SetGrace, TakeStacks, Preempt; AnswerDebugger,
                                                InterruptDebugger
    supervisor -> launcher       launch         ReplicasStarted; ReplicaPhase, ReplicaEntered,
                                                ReplicaReturned, ReplicaEnded, Events, StackTexts,
                                                WaitedLong; PreemptAnswer; AtBreakpoint,
                                                DebuggerLeft; Done,
                                                or UnsafeToFork, LoadFailed, CannotMake
    replica -> supervisor        replica        PhaseBegun, FunctionEntered, then ResultReady,
                                                ExitCalled or ExceptionRaised; FunctionLeft (of
                                                a thread); also from its children: OpenVoice,
                                                BreakpointReached
    supervisor -> replica        replica        FreshReplicaOrder (to a fresh interpreter)
    voice -> supervisor          replica        AskPreempted; WantValue, GiveValue; TakeTurn,
                                                ReturnTurn; Meet; CallOff; ShowInCell; Beat
    supervisor -> voice          replica        PreemptedAt; MakeValue, SharedValue or NoValue;
                                                YourTurn; Met; ShownInCell
    debugger <-> supervisor      replica        Synchronise; Synced. AnswerDebugger and
                                                DebuggerLeft are passed on

Messages whose fields are all plain travel in a format that runs no code (``plain_format``). A
replica sends nothing else: its supervisor opens no pickle of it, and passes the user's pickles on
unopened (``untrusted``). The other messages are pickles, which are opened only by a process that
trusts their sender: a child its parent, the launcher its supervisor.

A keeper and a script holder are fork servers too: the first two rows also apply to them.

Tests: ``tests/messages``, ``tests/supervisor/test_hostile_replicas.py``.
"""

__all__: list[str] = []
