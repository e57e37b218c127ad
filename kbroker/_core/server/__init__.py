"""Connections and their requests: the loop of a processor, from received bytes to sent ones, without the GIL.

Start with `processor.pxd` (the loop) and `connection.pxd` (a connection, its queue of responses, and who may touch it).
`receiving` makes frames of bytes, `routing` gives each frame to whom it is for, `sending` sends what is ready.
`produce/` and `fetch/` serve the two hot APIs to completion; `handover` gives everything else to Python, as a `Request`
of `request.pxd`. `mail` tells what a processor's mail and timers belong to, `cold_reader` reads bytes that are not in
memory.

Handlers of all other APIs are in `kbroker.server.handlers`.
"""
