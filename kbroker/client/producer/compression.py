"""Compression of a producer's batches, on a thread of its own: the codecs release the GIL while they work."""

from __future__ import annotations

import logging
import threading

from kbroker._core.client.producer.accumulator import Accumulator
from kbroker._core.client.producer.compressor import Compressor
from kbroker.protocol.compression import Codec, deflate

log = logging.getLogger("kbroker.client")

WAIT_MS = 1000
LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-(1 << 17), 22)}  #: (lowest, highest), as in Kafka


class CompressionThread:
    """Compresses batches until `stop`. The constructor raises ValueError for a level that the codec does not have."""

    def __init__(self, accumulator: Accumulator, codec: Codec, level: int | None, client_id: str):
        lowest, highest = LEVELS.get(codec, (0, -1))
        if level is not None and not lowest <= level <= highest:
            allowed = f"from {lowest} to {highest}" if codec in LEVELS else "left out"
            raise ValueError(f"compression.level={level}: must be {allowed} with {Codec(codec).name.lower()}")
        self._accumulator = accumulator
        self._compressor = Compressor(accumulator)
        self._codec = codec
        self._level = level
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"kbroker-compress-{client_id}", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Close the accumulator, which wakes the thread, and wait at most `timeout_s` seconds for the thread's end."""
        self._stopped = True
        self._accumulator.close()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopped:
            records = self._compressor.next_batch(WAIT_MS)
            if records is None:
                continue
            compressed = None
            try:
                compressed = deflate(self._codec, records, self._level)
            except Exception:
                log.exception("a batch could not be compressed and is sent as it is")
            finally:
                self._compressor.finish_batch(compressed)
