"""The launcher: the user's process, from the call of ``spawn`` to the results.

Started by the user, with the user's modules loaded. xmp adds no thread (but in a notebook, for the
output), imports no framework and opens no device. In a launch it

1. finds a fork server that fits, or starts one (``start_methods``, ``template_pool``);
2. has it fork a supervisor, and sends that the order (``supervisor_link``, ``packed_order``);
3. reads the supervisor's messages (``supervised``) in the threads that wait, and
   while one waits in the main thread, handles Ctrl-C, Ctrl-Z, Ctrl-\\ and SIGTERM for the replicas
   (``launch``, the loop that launches over hosts have, too);
4. makes results or an exception of them (``outcome``), or another attempt (``restarts``).

It is not the parent of supervisors or replicas. A normal exit waits for its launches (``context``).
However it ends, the kernel closes its lifelines: supervisors, replicas and templates end as well.

Tests: ``tests/launcher``.
"""

__all__: list[str] = []
