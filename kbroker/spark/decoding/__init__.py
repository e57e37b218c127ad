"""Keys and values as typed columns, made of text, JSON, or Avro with a schema registry.

Read `value_formats.py` first: it has the types of columns for the driver, and the decoding for tasks. The work on
bytes is compiled (`_core/rows`); here it is told what to do.
"""
