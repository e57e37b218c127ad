"""Readers that go through a segment from front to back, damaged or not.

`segment_scan.pyx` is for recovery and ends at the first error. `segment_check.pyx` and `index_check.pyx` are for
`kbroker verify-log` and go on behind an error. All read through the window of `file_window.pxd`.
"""
