"""The options of clients: their tables, what values they take, and how a client parses what it was given.

`option.py` has what an option is, `kinds.py` how values are parsed, `parsing.py` how a client's arguments become its
options. One module for each table: `network.py` (every client), `producer.py` with `encoders.py`, `consumer.py`,
`simple_consumer.py`, `connector.py`, `zookeeper.py`. `option_types.py` has the same options for type checkers and is
made by `make docs`. What a client does with an option is in that client's folder. Read `option.py` first.
"""
