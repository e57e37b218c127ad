"""What cuts a broker's life short (power cuts, full disks, clocks that are set), and what has to hold afterwards.

The tests are in `tests/crash` and `tests/unit/storage`. Read `fs.py` first.
"""
