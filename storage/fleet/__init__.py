"""Many hosts, one filter: the protocol between hosts, a log server and data servers.

`protocol` has the operations as generators that do no input or output: the drivers for sockets and the simulator of the
tests run the same code.  The rules are in ``docs/fleet-protocol.md``.
"""
