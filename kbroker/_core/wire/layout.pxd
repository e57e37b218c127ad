"""Byte positions of the record batch (magic 2) and of the messages before it (magic 0 and 1). On disk. Do not renumber.

Source: https://kafka.apache.org/documentation/#recordbatch and #messageset.
"""

cdef enum:
    BATCH_BASE_OFFSET = 0            # int64
    BATCH_LENGTH = 8                 # int32, bytes of everything behind this field
    BATCH_LEADER_EPOCH = 12          # int32, not covered by the CRC
    BATCH_MAGIC = 16                 # int8
    BATCH_CRC = 17                   # uint32, CRC-32C of everything from BATCH_ATTRIBUTES on
    BATCH_ATTRIBUTES = 21            # int16
    BATCH_LAST_OFFSET_DELTA = 23     # int32
    BATCH_BASE_TIMESTAMP = 27        # int64
    BATCH_MAX_TIMESTAMP = 35         # int64
    BATCH_PRODUCER_ID = 43           # int64
    BATCH_PRODUCER_EPOCH = 51        # int16
    BATCH_BASE_SEQUENCE = 53         # int32
    BATCH_RECORD_COUNT = 57          # int32
    BATCH_HEADER_SIZE = 61
    LOG_OVERHEAD = 12                # base offset and length: the bytes that the length does not count
    MIN_BATCH_LENGTH = 49            # BATCH_HEADER_SIZE - LOG_OVERHEAD

    ATTRIBUTE_CODEC_MASK = 0x07      # 0 none, 1 gzip, 2 snappy, CODEC_LZ4, CODEC_ZSTD
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20
    ATTRIBUTE_DELETE_HORIZON = 0x40
    ATTRIBUTES_IN_USE = 0x7f

    CODEC_LZ4 = 3                    # the last codec of magic 0 and 1
    CODEC_ZSTD = 4                   # the last codec

    # A message has LOG_OVERHEAD, the position of the magic, and the bits of the codec and of LogAppendTime in common
    # with a batch.
    MESSAGE_OFFSET = 0               # int64; inside a compressed message of magic 1 relative to the first inner one
    MESSAGE_LENGTH = 8               # int32, bytes of everything behind this field
    MESSAGE_CRC = 12                 # uint32, CRC-32 of everything from MESSAGE_MAGIC on
    MESSAGE_MAGIC = 16               # int8
    MESSAGE_ATTRIBUTES = 17          # int8
    MESSAGE_TIMESTAMP = 18           # int64, magic 1 only
    MESSAGE_KEY_V0 = 18              # int32 size and bytes; the value follows in the same form
    MESSAGE_KEY_V1 = 26
    MIN_MESSAGE_LENGTH_V0 = 14       # key and value null
    MIN_MESSAGE_LENGTH_V1 = 22

    INDEX_ENTRY_SIZE = 8             # .index: int32 relative offset, int32 position
    TIME_INDEX_ENTRY_SIZE = 12       # .timeindex: int64 timestamp, int32 relative offset
