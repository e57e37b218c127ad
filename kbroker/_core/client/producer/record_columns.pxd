"""Puts many records into the queue in one call, from lists, NumPy or Arrow arrays. Neither library is imported."""

from kbroker._core.client.producer.accumulator cimport Topic
from kbroker._core.client.producer.delivery cimport Deliveries
from kbroker._core.client.producer.record_sender cimport RecordSender

# Puts the records into the queues and returns their Deliveries. With `taken`, the Deliveries of an earlier call with
# the same arguments, it goes on behind the records that that call has taken. With `impatient` it takes only the records
# that there is room for now.
cdef Deliveries send_columns(RecordSender sender, Topic topic, values, keys, headers, partitions, timestamps,
                             Deliveries taken, bint impatient)
