"""A producer's records: queued, packed into batches, sent, acknowledged.

Start with `accumulator.pxd` (the queues of batches, and their bounds). Records come in through `record_sender` (one
record) and `record_columns` (many records; `given_columns` reads lists, NumPy and Arrow arrays). `outgoing` is a batch
under way, `outgoing_list` a list of batches, `outgoing_split` cuts a batch that is too large, `compressor` hands
batches to a codec, `partitioner` chooses partitions. `engine` sends Produce requests (`frame` writes them, `exchange`
holds those under way), `trouble` lets Python decide about refused batches, `delivery` tells the caller.
"""
