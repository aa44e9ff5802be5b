"""accelerate's launchers: ``from xmp.compat.accelerate import notebook_launcher``.

Names, parameters and defaults are those of accelerate 1.15 (src/accelerate/launchers.py). The rest
of accelerate stays as it is: ``Accelerator`` in the function finds the world of the launch, in
every launch of xmp's. A script for ``accelerate launch`` runs under ``xmp run``.

What differs. On a host without a device ``num_processes=2`` is a world of two on the CPU, where
accelerate starts two worlds of one unless ``Accelerator(cpu=True)`` or ACCELERATE_USE_CPU says
otherwise. ``mixed_precision`` reaches the ``Accelerator``, which it does not in accelerate 1.15.
``use_port="29500"``, the default, is any free port where there is one host. Replicas are not forks
of this process, which may therefore have used its GPU and imported bitsandbytes. A failed replica
is an ``xmp.ReplicaError``; where torch is loaded, it is torch's ``ProcessRaisedException`` as well,
which ``debug_launcher`` raises in accelerate, but not the ``ChildFailedError`` of
``notebook_launcher``. A number of processes that the host cannot have is refused before any process
exists.
"""

from ._launchers import debug_launcher, notebook_launcher

__all__ = ["debug_launcher", "notebook_launcher"]
