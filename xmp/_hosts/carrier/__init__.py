"""Between the hosts of a launch that a scheduler or a person has placed on several.

Each launcher has a carrier process beside it. That of host 0 is the coordinator: it calls the roll,
hears one beat a second from every other host, and gives one verdict when the launch fails
anywhere. What travels is about the launch, in a plain format: never the users' data.

What a launcher has of it is ``host_link.HostLink``; ``process`` is what a carrier process runs.
This file imports neither, so that a carrier process is small.
"""
