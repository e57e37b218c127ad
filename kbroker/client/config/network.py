"""Options of every client: its brokers, its connections, and their security."""

from __future__ import annotations

from kbroker.client.config.kinds import MS, anything, one_of, path, servers, text, whole
from kbroker.client.config.option import Option, table_of

NETWORK = table_of(
    Option("bootstrap.servers", servers, (), "brokers to begin with, HOST:PORT,...", ("metadata.broker.list",)),
    Option(
        "client.dns.lookup",
        one_of("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        "use_all_dns_ips",
        "all addresses of a name are tried, one after the other; the second: bootstrap servers are connected to by the "
        "names that their addresses have",
    ),
    Option("client.id", text, "kbroker", "what brokers log and count this client as"),
    Option("request.timeout.ms", whole(1, 1 << 31), 30_000, "how long a broker may take to answer"),
    Option("default.api.timeout.ms", MS, 60_000, "how long a call may take, retries included"),
    Option(
        "socket.connection.setup.timeout.ms",
        whole(1, 1 << 31),
        10_000,
        "how long connecting to one broker may take, TLS and authentication not included",
    ),
    Option(
        "connections.max.idle.ms",
        whole(-1, 1 << 40),
        540_000,
        "connections that have carried nothing for so long are closed, sooner than brokers do it; -1: never",
    ),
    Option(
        "broker.version.fallback",
        one_of("", "0.9.0", "0.8.2"),
        "",
        "what a broker is taken for that does not say within socket.connection.setup.timeout.ms what it serves: those "
        "before Kafka 0.10 cannot",
    ),
    Option("reconnect.backoff.ms", MS, 50, "wait before a broker is connected to again, doubled with each failure"),
    Option("reconnect.backoff.max.ms", MS, 1_000, "the longest such wait"),
    Option("retry.backoff.ms", MS, 100, "wait before a refused request is tried again, doubled with each failure"),
    Option("retry.backoff.max.ms", MS, 1_000, "the longest such wait"),
    Option("metadata.max.age.ms", whole(1, 1 << 40), 300_000, "metadata older than this is asked for again"),
    Option("receive.message.max.bytes", whole(1_000, 1 << 30), 100_000_000, "largest response that is believed"),
    Option("send.buffer.bytes", whole(-1, 1 << 30), -1, "SO_SNDBUF; -1 the system's", ("socket.send.buffer.bytes",)),
    Option(
        "receive.buffer.bytes", whole(-1, 1 << 30), -1, "SO_RCVBUF; -1 the system's", ("socket.receive.buffer.bytes",)
    ),
    Option(
        "security.protocol",
        one_of("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        "PLAINTEXT",
        "whether connections are encrypted, and whether who connects says who he is",
    ),
    Option(
        "sasl.mechanism",
        one_of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "PLAIN",
        "how to authenticate",
        ("sasl.mechanisms",),
    ),
    Option("sasl.username", text, "", "who to be", ("sasl.plain.username",)),
    Option("sasl.password", text, "", "and how to prove it", ("sasl.plain.password",), secret=True),
    Option(
        "ssl.ca.location",
        path,
        "",
        "PEM file or folder of certificates that brokers' may be signed by; the system's if not given",
        ("ssl.cafile", "ssl.truststore.location"),
    ),
    Option(
        "ssl.certificate.location",
        path,
        "",
        "PEM file of the client's certificate and its chain",
        ("ssl.certfile", "ssl.keystore.location"),
    ),
    Option("ssl.key.location", path, "", "PEM file of its key, unless that is in the same file", ("ssl.keyfile",)),
    Option("ssl.key.password", text, "", "of that key", ("ssl.keystore.password",), secret=True),
    Option(
        "ssl.endpoint.identification.algorithm",
        one_of("https", "none", ""),
        "https",
        "https: a broker's certificate must be for the name it is connected to by; none or empty: for any",
    ),
    Option("ssl.context", anything, None, "an ssl.SSLContext to use instead of the other ssl options"),
)
