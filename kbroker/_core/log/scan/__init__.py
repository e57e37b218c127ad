"""Segments read from front to back, whatever is in them.

`segment_scan.pyx` is for recovery and ends at the first error; `segment_check.pyx` and `index_check.pyx` are for
`kbroker verify-log` and go on behind it. All read through the window of `file_window.pxd`.
"""
