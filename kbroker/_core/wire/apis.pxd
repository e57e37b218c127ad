"""The API keys that compiled code knows, and the versions from which they mean something else."""

cdef enum:
    API_KEYS = 96                # keys are below: arrays by key have so many elements

    API_PRODUCE = 0
    API_FETCH = 1
    API_LEADER_AND_ISR = 4       # 4 to 7 are requests between brokers
    API_CONTROLLED_SHUTDOWN = 7  # its header has no client id in version 0
    API_VERSIONS = 18
    API_ALTER_PARTITION = 56
    API_ALLOCATE_PRODUCER_IDS = 67

    PRODUCE_BATCHES_FROM = 3     # earlier versions have message sets: of magic 1 in version 2, of magic 0 before
    PRODUCE_ZSTD_FROM = 7        # KIP-110
    PRODUCE_LEADERS_FROM = 10    # answers name the current leader (KIP-951)
    PRODUCE_ADDS_FROM = 12       # a batch that begins a transaction adds the partition to it (KIP-890, part 2)

    FETCH_BATCHES_FROM = 4       # earlier versions get messages: magic 0 in versions 0 and 1, magic 1 in 2 and 3
    FETCH_FOLLOWERS_FROM = 11    # consumers may fetch from followers (KIP-392)
    FETCH_LEADERS_FROM = 16      # answers name the current leader (KIP-951)
    FETCH_ZSTD_FROM = 10         # older clients may not read a topic with compression.type zstd (KIP-110)

    READ_UNCOMMITTED = 0         # isolation levels of a Fetch
    READ_COMMITTED = 1
