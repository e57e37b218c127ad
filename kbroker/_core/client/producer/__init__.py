"""A producer's records: queued, packed into batches, sent, acknowledged.

Start with `accumulator.pxd` (queues of batches, their bounds). Records come in by `record_sender` (one) and
`record_columns` (many; `given_columns` reads lists, NumPy and Arrow arrays). `outgoing` is a batch under way,
`outgoing_list` a queue of them, `outgoing_split` cuts one that was too large, `compressor` compresses, `partitioner`
chooses partitions. `engine` sends Produce requests (`frame` writes them, `exchange` keeps those under way), `trouble`
decides about refused batches, `delivery` tells the caller.
"""
