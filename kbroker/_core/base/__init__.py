"""What everything compiled stands on: locks, mail between threads, timers, memory. Nothing here knows Kafka's bytes.

Start with `sync.pxd` (atomics, mutexes) and `mailbox.pxd` (how a thread tells a processor something). The others:
`futex` and `epoll` (the system's calls), `timer_wheel` (deadlines of connections and requests), `receive_buffers`
(memory for frames that are still arriving), `arrays` (C arrays that grow), `seeded_hash` (SipHash, for keys that come
from outside), `field_bytes` and `raw_objects` (Python objects as bare pointers), `build_info` (what was compiled).
"""
