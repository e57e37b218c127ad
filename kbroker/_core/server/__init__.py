"""Connections and their requests: the loop of a processor, from received bytes to sent ones, without the GIL.

Start with `processor.pxd` (the loop) and `connection.pxd` (a connection, its queue of responses, and who may touch it).
`receiving` makes frames of bytes, `routing` passes each frame on by its API, `sending` sends the responses that are
ready. `produce/` and `fetch/` serve the two hot APIs to completion; `handover` gives everything else to Python, as a
`Request` of `request.pxd`. `serving` has what they need of a processor, `peer` the connection as Python sees it, `mail`
finds the objects of a processor's mail and timers, `counters` counts for the metrics, `cold_reader` brings file bytes
into memory.

The handlers of all other APIs are in `kbroker.server.handlers`.
"""
