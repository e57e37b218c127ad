"""Bytes as Kafka defines them: batches, messages, records, and the fields of requests and responses.

Start with `cursor.pxd`: every byte from outside is read through its checked reader. `layout.pxd` says where each field
stands, `apis.pxd` has the keys of APIs and what their versions mean, `error_codes.pxd` the error codes.
`record_batch.pxd` checks and stamps batches of magic 2, `message_set.pxd` reads magic 0 and 1, `conversion.pxd`
converts between the formats. `record` and `varint` read single records in loops; `records` makes Python objects of
records, `columns` makes flat arrays. `codec` has the base of all message classes: `message_plan` says which fields a
message has, `message_decode` and `message_encode` read and write it. `crc` and `xxh32` compute checksums,
`transaction_marker` writes the end of a transaction. Files, sockets and threads are elsewhere: `log/`, `server/`,
`client/`.
"""
