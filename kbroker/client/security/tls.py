"""TLS of a client: the SSLContext of the ssl options, and the TLS of one connection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.client.config.option import Options

if TYPE_CHECKING:
    import ssl

READ_SIZE = 256 << 10


def uses_tls(options: Options) -> bool:
    return str(options["security.protocol"]).endswith("SSL")


def ssl_context(options: Options) -> ssl.SSLContext:
    """Return the SSLContext of the ssl options. Raises ValueError, which names the option that is wrong."""
    import ssl

    given = options["ssl.context"]
    if given is not None:
        if not isinstance(given, ssl.SSLContext):
            raise ValueError(f"ssl.context={given!r}: must be an ssl.SSLContext")
        return given
    context = (
        ssl.create_default_context() if not options["ssl.ca.location"] else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options["ssl.endpoint.identification.algorithm"] == "https"
    authorities = options["ssl.ca.location"]
    if authorities:
        try:
            if Path(authorities).is_dir():
                context.load_verify_locations(capath=authorities)
            else:
                context.load_verify_locations(authorities)
        except (OSError, ssl.SSLError) as error:
            raise ValueError(f"ssl.ca.location={authorities!r}: {error}; it must be a PEM file or folder") from None
    certificate, key = options["ssl.certificate.location"], options["ssl.key.location"]
    if key and not certificate:
        raise ValueError("ssl.key.location is given without ssl.certificate.location")
    if certificate:
        try:
            # Without a password OpenSSL would ask on the terminal.
            context.load_cert_chain(certificate, key or None, lambda: options["ssl.key.password"])
        except (OSError, ssl.SSLError) as error:
            raise ValueError(
                f"ssl.certificate.location={certificate!r}, ssl.key.location={key!r}: {error}; "
                "both must be PEM files, and ssl.key.password fit"
            ) from None
    return context


class TlsTransport:
    """The TLS of one connection, handshake included. It transforms bytes, and does not touch the socket."""

    def __init__(self, context: ssl.SSLContext, host: str):
        import ssl

        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._want_read = ssl.SSLWantReadError
        self._ended = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
        self._refused = ssl.SSLError

    def handshake(self, received: bytes) -> tuple[bool, bytes]:
        """Go on with the handshake; return whether it is done, and the bytes to send.

        Raises ssl.SSLError when the handshake fails.
        """
        self._incoming.write(received)
        try:
            self._tls.do_handshake()
        except self._want_read:
            return False, self._outgoing.read()
        return True, self._outgoing.read()

    def last_words(self) -> bytes:
        """Return the alert to send to the other side after a failed handshake."""
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """Return the plain text of received bytes. Raises ValueError when they are not valid TLS."""
        self._incoming.write(data)
        parts = []
        try:
            while part := self._tls.read(READ_SIZE):
                parts.append(part)
        except (self._want_read, *self._ended):
            pass  # more bytes are needed, or TLS has ended: the socket tells of the stream's end
        except self._refused as error:
            raise ValueError(_refusal(error)) from None
        return b"".join(parts)

    def encrypt(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
        return self._outgoing.read()


def _refusal(error: ssl.SSLError) -> str:
    """Return why the handshake has failed: what the broker's alert means, or what else is wrong with its bytes."""
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" not in reason:
        return reason
    return f"{reason}: the broker refuses our certificate, or misses one (ssl.certificate.location)"
