"""A partition's log while it is open: append, lookup, flush, the state of its producers.

Start with `partition.pxd`: it has the struct of a partition and its locks. `append.pxd` appends, `position.pxd` finds
offsets, `time_position.pxd` finds times, `flush.pxd` flushes and releases the acknowledgements that wait for it.
`segment_list` changes the list of segments, `pending_index` keeps their newest index entries, `offset_index` searches
their indexes, `producers` keeps sequences and open transactions, `verifications` the transactions that a coordinator is
being asked about, `directory` what the logs of one directory share, `registry` all partitions by name and id. `io` has
the file calls, `partition_state` the class that Python works with. `compaction/` copies segments, `scan/` reads them from front to back.

Files are opened, rolled and deleted by `kbroker.storage`: nothing here opens a file by name.
"""
