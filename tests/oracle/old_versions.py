"""Where Produce 0 to 2 and Fetch 0 to 3 differ from those of Apache Kafka: a part of `deviations.py`."""

from __future__ import annotations

from tests.oracle.deviation import CUT_SHORT, KAFKA_FAILS, STRICT, Deviation

OLD_VERSIONS: tuple[Deviation, ...] = (
    Deviation(
        (
            "produce.no_records",
            "produce.batches_cut_short",
            "produce.messages_cut_short",
        ),
        ("*.error_code", "*.base_offset", "*batches of*"),
        "Records of which the last one is cut short, or no records at all, are INVALID_RECORD, as in later versions. "
        "Kafka drops what is cut, in compressed messages too, and answers that all is well.",
        CUT_SHORT,
        until=2,
    ),
    Deviation(
        ("produce.lengths_that_lie", "produce.message_sizes_that_lie"),
        ("[8 Produce]*", "[14 Produce]*", "[30 Produce]*"),
        "A size that is larger than what is there is INVALID_RECORD: the record is cut short.",
        CUT_SHORT,
        kafka="NONE",
        ours="INVALID_RECORD",
        until=2,
    ),
    Deviation(
        ("produce.a_bad_batch_beside_a_good_one",),
        ("[0 Produce]*", "[1 Produce]*", "[16 Produce]*", "[17 Produce]*"),
        "A batch that is cut short, or is not there, is INVALID_RECORD.",
        CUT_SHORT,
        kafka="NONE",
        ours="INVALID_RECORD",
        until=2,
    ),
    Deviation(
        ("produce.lengths_that_lie",),
        ("[3 Produce]*.error_code",),
        "A length of 14, which a message could have, is CORRUPT_MESSAGE.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="CORRUPT_MESSAGE",
        until=2,
    ),
    Deviation(
        ("produce.codecs", "produce.what_does_not_inflate"),
        ("[6 Produce]*", "[7 answered]", "[7 Produce]*", "[8 ListOffsets]*"),
        "A batch that is compressed with zstd is UNSUPPORTED_COMPRESSION_TYPE, as in versions 3 to 6. Kafka takes it.",
        "No client of these versions has it, and none of those who read with Fetch 0 to 9 could read it.",
        until=2,
    ),
    Deviation(
        ("produce.message_sizes_that_lie",),
        ("*.error_code",),
        "A size inside of a compressed message that no message can have is CORRUPT_MESSAGE.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="CORRUPT_MESSAGE",
    ),
    Deviation(
        ("produce.keys_and_values_whose_sizes_lie",),
        ("*.error_code", "*.base_offset"),
        "A message whose key and value do not end where it ends, or have a size below -1, is INVALID_RECORD. Kafka "
        "ignores what is behind them, takes a size below -1 for null, and fails inside with those that are too large.",
        STRICT,
    ),
    Deviation(
        ("produce.messages_with_wrong_checksums", "produce.messages_nested_and_mixed"),
        ("[3 Produce]*", "[8 Produce]*", "[9 Produce]*", "[14 Produce]*", "[19 Produce]*", "[20 Produce]*"),
        "Of two things that are wrong the first to be seen is told: a CRC before a codec, a magic before another. A "
        "batch behind or inside of a message is CORRUPT_MESSAGE.",
        "No client sends it; both codes refuse it.",
        kafka="INVALID_RECORD",
        ours="CORRUPT_MESSAGE",
    ),
    Deviation(
        ("produce.messages_of_magic_and_attributes_nobody_knows",),
        ("*.error_code",),
        "An unknown codec is UNSUPPORTED_COMPRESSION_TYPE.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="UNSUPPORTED_COMPRESSION_TYPE",
    ),
    Deviation(
        (
            "produce.compressed_messages_of_nothing",
            "produce.bad_messages_beside_good_ones",
            "produce.framings_of_snappy_and_lz4",
        ),
        ("*.error_code",),
        "A compressed message that does not inflate is INVALID_RECORD; lz4 of magic 1 with the header checksum of "
        "magic 0 is such a one.",
        KAFKA_FAILS,
        kafka="UNKNOWN_SERVER_ERROR",
        ours="INVALID_RECORD",
    ),
    Deviation(
        ("produce.messages_that_inflate_too_far",),
        ("*.error_code", "*.base_offset"),
        "A message that inflates to more than kbroker.inflated.batch.max.bytes is MESSAGE_TOO_LARGE. Kafka has no "
        "limit.",
        "A few kilobytes of zeros must not take the memory of the broker, nor of every consumer.",
    ),
    Deviation(
        ("produce.a_message_that_claims_the_time_of_the_broker",),
        ("[1 Produce]*",),
        "A message that is not compressed, and says that its timestamp is the broker's, gets the broker's where the "
        "topic's type is LogAppendTime. Kafka refuses it there, but not where the type is CreateTime.",
        "What it asks for is what it gets.",
    ),
    Deviation(
        ("produce.times_of_messages",),
        ("[7 Produce]*", "[8 batches*", "[16 Produce]*", "[17 batches*"),
        "A timestamp below -1 is kept, as that of a batch is.",
        KAFKA_FAILS,
    ),
    Deviation(
        (
            "fetch.limits_of_a_partition",
            "fetch.limits_of_a_response",
            "fetch.nothing_waits_that_cannot_come",
        ),
        ("*.records[message 0]",),
        "There is always one whole batch in an answer, whatever its size, as in later versions. Kafka cuts it at the "
        "partition's limit.",
        "A client of these versions that meets a message above its limit stops there, or asks for the same for ever.",
        kafka="<absent>",
        until=2,
    ),
    Deviation(
        ("fetch.zstd", "fetch.zstd_among_other_batches", "fetch.conversion_that_is_forbidden"),
        ("*.records",),
        "With the error comes an empty message set. Kafka puts null there.",
        "The protocol of these versions has no null there.",
        ours={},
        until=3,
    ),
)
