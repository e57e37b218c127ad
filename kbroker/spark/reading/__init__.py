"""Topics as rows: plans on the driver, ranges of offsets in tasks."""
