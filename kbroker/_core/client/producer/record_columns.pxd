"""Many records in one call, from lists, NumPy and Arrow arrays; neither library is imported."""

from kbroker._core.client.producer.accumulator cimport Topic
from kbroker._core.client.producer.delivery cimport Deliveries
from kbroker._core.client.producer.record_sender cimport RecordSender

# `taken`: goes on behind what an earlier call has taken. `impatient`: takes what there is room for, and returns.
cdef Deliveries send_columns(RecordSender sender, Topic topic, values, keys, headers, partitions, timestamps,
                             Deliveries taken, bint impatient)
