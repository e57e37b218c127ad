from __future__ import annotations

import pytest

from kbroker.client.security.jaas import credentials
from kbroker.errors import KbrokerError

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "username", "password"),
    [
        (f'{PLAIN} required username="alice" password="secret";', "alice", "secret"),
        (f"{SCRAM} required username='alice' password='it\"s';", "alice", 'it"s'),
        (f"{SCRAM} required username=alice password=secret;", "alice", "secret"),
        (f' {SCRAM}\n  required\n  username = "a b"\n  password="p,=;\\"\\\\ä" ; \n', "a b", 'p,=;"\\ä'),
        (f'{PLAIN} required user_bob="x" password="username=eve" username="alice";', "alice", "username=eve"),
        (f'{PLAIN} Required username="" password="";', "", ""),
        ('PlainLoginModule sufficient serviceName="kafka" username="a" password="b";', "a", "b"),
    ],
)
def test_name_and_password_are_found(text: str, username: str, password: str) -> None:
    assert credentials(text) == {"sasl.username": username, "sasl.password": password}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not MODULE required"),
        ('username="alice" password="secret"', "is not MODULE required"),
        (f'{PLAIN} required username="alice" password="secret"', "is not MODULE required"),
        (f'{PLAIN} username="alice" password="secret";', "behind the module stands one of required"),
        ('x.OAuthBearerLoginModule required a="b";', "OAuthBearerLoginModule is not supported"),
        (f'{PLAIN} required username="alice";', "has no password"),
        (f'{PLAIN} required password="secret";', "has no username"),
        (f"{PLAIN} required username=alice password=;", "what follows username is not NAME=VALUE"),
        (f'{PLAIN} required username="alice password=secret;', "its first option is not NAME=VALUE"),
        (f'{PLAIN} required username="a" password="secret"; {SCRAM} required;', "what follows password is not"),
    ],
)
def test_what_is_wrong_is_said_without_the_secret(text: str, says: str) -> None:
    with pytest.raises(KbrokerError, match=says) as raised:
        credentials(text)
    assert "secret" not in str(raised.value)
