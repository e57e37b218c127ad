"""Certificates for tests, made by the openssl command: an authority and the certificates that it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """Writes PEM files into `folder`: ca.pem, and for each `issue` NAME.pem, NAME.key and NAME.chain.pem (both)."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.certificate = folder / "ca.pem"
        self._openssl(
            "req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=authority -keyout ca.key -out ca.pem"
            " -addext basicConstraints=critical,CA:TRUE"
        )

    def issue(self, name: str, alternatives: str = "DNS:localhost,IP:127.0.0.1", password: str = "") -> Path:
        """Sign a certificate for `name`, and return the file with key and certificate. `password` encrypts the key."""
        locked = ["-passout", f"pass:{password}"] if password else ["-nodes"]
        self._openssl(f"req -newkey rsa:2048 -subj /CN={name} -keyout {name}.key -out {name}.csr", *locked)
        (self.folder / "extensions").write_text(f"subjectAltName={alternatives}\n")
        self._openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -out {name}.pem"
            " -extfile extensions"
        )
        chain = self.folder / f"{name}.chain.pem"
        chain.write_text((self.folder / f"{name}.key").read_text() + (self.folder / f"{name}.pem").read_text())
        return chain

    def _openssl(self, command: str, *more: str) -> None:
        subprocess.run(["openssl", *command.split(), *more], cwd=self.folder, check=True, capture_output=True)
