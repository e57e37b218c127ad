"""Keys and values as typed columns: text, JSON, Avro with a registry."""
