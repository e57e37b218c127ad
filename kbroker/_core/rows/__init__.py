"""Values of records as typed columns, in Arrow's layout: JSON and Avro.

Start with `typed_columns.pxd` (columns of any nesting). `json` and `avro` fill these columns; `json_tokens` and
`number_text` parse texts.
"""
