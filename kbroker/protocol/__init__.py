"""What is on the wire: API table, headers, messages, record batches, compression. Opens no socket and no file.

Read `api.py` first; `messages.py` has the message classes, whose codec is `_core/wire/codec.pyx`.
"""
