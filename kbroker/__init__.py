"""kbroker: a message broker that speaks the Kafka protocol. Start with `docs/ARCHITECTURE.md`."""

__version__ = "0.1.0"
