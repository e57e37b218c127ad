"""The assignors of the classic group protocol, which share a group's partitions among its members.

`assignor.py` is the base class, also of users' own assignors. `assignors.py` and `sticky.py` have those that come with
the client, `racks.py` how they heed racks. `group_protocol.py` has the bytes that members exchange. How a member joins
its group is in `client/consumer/`. Read `assignor.py` first.
"""
