"""Checksums: CRC-32C of record batches (magic 2), CRC-32 of older messages. As zlib's: start with 0, go on with the last result."""

from libc.stdint cimport uint8_t, uint32_t

cdef uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
cdef uint32_t crc32(uint32_t crc, const uint8_t *data, size_t size) noexcept nogil
