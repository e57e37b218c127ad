"""Reading topics as rows: the driver plans (planning.py), each task reads one range of offsets (range_reader.py)."""
