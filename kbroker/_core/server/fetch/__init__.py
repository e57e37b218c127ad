"""Fetch (key 1): sessions, limits, long polls, file regions.

Start with `fetch.pxd`, which decides what becomes of a fetch. `request` parses it, `entries` finds its partitions,
`sessions` keeps them between fetches (KIP-227), `look` finds what can be sent, `response` writes the answer, `messages`
converts batches for clients that read magic 0 and 1.
"""
