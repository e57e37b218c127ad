"""Bytes as Kafka defines them: batches, messages, records, and the fields of requests and responses.

Start with `cursor.pxd`: every byte from outside is read through its checked reader. `layout.pxd` says where each field
stands, `record_batch.pxd` checks and stamps batches of magic 2, `message_set.pxd` reads magic 0 and 1, `conversion.pxd`
turns one into the other. `record` and `varint` are the loops over records; `records` makes Python objects of them,
`columns` flat arrays. `codec` has the base of all message classes: `message_plan` says what a message is made of,
`message_decode` and `message_encode` work by it. `crc`, `xxh32` and `transaction_marker` are what their names say.
Files, sockets and threads are elsewhere: `log/`, `server/`, `client/`.
"""
