"""A consumer's fetching: records are fetched ahead, checked, and handed out by `poll`.

Start with `partitions.pxd` (the partitions, and the records that wait to be polled) and `fetch.pxd` (which broker is
asked for what). `fetch_request` and `fetch_response` write and read the frames. `chunk` is what a response brought for
one partition, `batches` walks through it, `messages` reads magic 0 and 1. `poll` hands out `records` (each one a
`record`); `columns` makes flat arrays of them.
"""
