"""A partition's log while it is open: append, lookup, flush, the state of its producers.

Start with `partition.pxd`: it has the struct of a partition and its locks. `append.pxd` appends, `position.pxd` finds
offsets, `time_position.pxd` finds times, `flush.pxd` flushes and releases the acknowledgements that wait for it.
`segment_list` changes the list of segments, `segment_indexes` has their index files, `pending_index` the entries that
are not in them yet, `offset_index` searches them. `producers` keeps sequences and open transactions (`producer_table`
shows them to Python), `verifications` the transactions that a coordinator is being asked about, `directory` what the
logs of one directory share, `partition_table` has all partitions by name and id. `io` has the file calls,
`partition_state` the class that Python works with. `compaction/` copies segments, `scan/` reads them from front to
back.

Files are opened, rolled and deleted by `kbroker.storage`: nothing here opens a file by name.
"""
