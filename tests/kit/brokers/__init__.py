"""Brokers for tests: real ones, and stand-ins that answer as a test says.

Real: `process.py` (as users run it), `whole.py` (in this process, to look inside), `small.py` (logs and the handlers of
partitions alone: a topic is made in no time, and the clock of fetch sessions is the test's). Stand-ins: `scripted.py`
is the socket, the frames and the versions of all others; `produce.py` and `group.py` know what a producer and a member
of a group must do; `fetch.py` has no thread, so that the test decides what comes first; `answers.py` is what all of
them answer alike. Apache Kafka is in `kafka`, single parts of a broker in `parts`.
"""
