"""TLS and SASL of clients, without sockets of their own.

`tls.py` makes the SSLContext and encrypts a connection, `sasl.py` has the exchanges, `sasl_tokens.py` is for brokers
before Kafka 1.0. `jaas.py` and `java_stores.py` read how Java's clients are configured. Who connects, and when, is in
`client/network/`. Read `tls.py` first.
"""
