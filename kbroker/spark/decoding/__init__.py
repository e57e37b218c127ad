"""Keys and values as typed columns, from text, JSON, or Avro with a schema registry: read value_formats.py first."""
