"""Fetch (key 1): sessions, limits, long polls, file regions.

Start with `fetch.pxd`: it decides what becomes of a fetch. `request` reads it, `entries` finds its partitions,
`sessions` keeps them between fetches (KIP-227), `look` finds what can be sent, `response` writes the answer, `messages`
converts for clients that read magic 0 and 1.
"""
