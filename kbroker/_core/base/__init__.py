"""The basis of all compiled modules: locks, mail between threads, timers, memory. Nothing here knows Kafka's protocol.

Start with `sync.pxd` (atomics, mutexes) and `mailbox.pxd` (how a thread tells a processor something). The others:
`clock` (the system's clocks), `futex`, `epoll` and `sockets` (the system's calls), `sealing` (what TLS does with a
connection's bytes), `links` (lists whose links are in their elements), `timer_wheel` (deadlines of connections and
requests), `receive_buffers` (memory for frames that are still arriving), `arrays` (C arrays that grow),
`seeded_hash` (SipHash, for keys that come from outside), `field_bytes` (bytes of Python objects), `raw_objects` (Python
objects as bare pointers), `build_info` (which build this is).
"""
