from typing import NamedTuple

class ApiCounters(NamedTuple):
    requests: int
    bytes_in: int
    bytes_out: int
    latency_ns: int
    latencies: tuple[int, ...]
    errors: dict[int, int]
