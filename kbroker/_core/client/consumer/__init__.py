"""A consumer's fetching: asked ahead, checked, handed out by `poll`.

Start with `partitions.pxd` (what is fetched, and what waits to be polled) and `fetch.pxd` (what is asked of which
broker). `fetch_request` and `fetch_response` write and read the frames, `chunk` is what a response brought for one
partition, `batches` walks it, `messages` reads magic 0 and 1. `poll` hands out `records` (and each `record`), `columns`
flat arrays.
"""
