"""Checksums: CRC-32C of record batches (magic 2), CRC-32 of messages of magic 0 and 1.

As in zlib, `crc` is 0 for the first bytes, and the last result for the bytes that follow.
"""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    # From this size on a Python caller releases the GIL. Below it, releasing costs more than the checksum.
    RELEASE_FROM = 8192

cdef uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
cdef uint32_t crc32(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
