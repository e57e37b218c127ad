from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.broker_config import BrokerConfig, environment_name, load_config, refuse_unknown
from kbroker.config.definitions import ALIASES, SETTINGS
from kbroker.config.listeners import parse_counts
from kbroker.config.not_read import NOT_READ
from kbroker.errors import ConfigError
from kbroker.model import Endpoint
from kbroker.rules.config_values import INTEGER_RANGE, Kind, format_value

ZOOKEEPER_MODE = """
broker.id=0
#listeners=PLAINTEXT://:9092
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""
KRAFT_MODE = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
log.dirs=/tmp/kraft-combined-logs
log.segment.bytes=1073741824
share.coordinator.state.topic.replication.factor=1
log.retention.hours=168
"""


def config(
    *overrides: str, text: str | None = None, tmp_path: Path | None = None, env: dict[str, str] | None = None, data=None
) -> BrokerConfig:
    path = None
    if text is not None:
        assert tmp_path is not None
        path = tmp_path / "server.properties"
        path.write_text(text)
    return load_config(path, overrides, data, env or {})


def notices(settings: BrokerConfig) -> str:
    return "\n".join(notice.text for notice in settings.notices)


def test_the_defaults_serve_on_this_machine_only() -> None:
    settings = config()
    assert settings.listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092),)
    assert settings.advertised_listeners == ()
    assert settings.node_id == -1
    assert settings.notices == ()
    assert settings.http_address is None


def test_a_server_properties_of_zookeeper_mode_starts(tmp_path: Path) -> None:
    settings = config(text=ZOOKEEPER_MODE, tmp_path=tmp_path)
    refuse_unknown(settings)
    assert settings.node_id == 0
    assert settings.log_dirs == (Path("/tmp/kafka-logs"),)
    assert settings["num.network.threads"] == 3
    assert (settings["zookeeper.connect"], settings["zookeeper.connection.timeout.ms"]) == ("localhost:2181", 18000)
    assert notices(settings) == ""


def test_a_server_properties_of_kraft_mode_starts_without_the_controllers_listener(tmp_path: Path) -> None:
    settings = config(text=KRAFT_MODE, tmp_path=tmp_path)
    refuse_unknown(settings)
    assert settings.node_id == 1
    assert settings.listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "", 9092),)
    assert settings.advertised_listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "localhost", 9092),)
    assert settings.inter_broker_listener == "PLAINTEXT"
    assert "listener CONTROLLER://:9093 is not opened" in notices(settings)
    assert "process.roles, controller.quorum.voters (not needed" in notices(settings)


def test_the_later_source_wins(tmp_path: Path) -> None:
    env = {"KBROKER_NUM_PARTITIONS": "3", "KBROKER_NUM_IO_THREADS": "7", "HOME": "/"}
    settings = config(
        "num.partitions=4", text="num.partitions=2\nnum.io.threads=6\nnum.network.threads=5", tmp_path=tmp_path, env=env
    )
    assert [settings[name] for name in ("num.partitions", "num.io.threads", "num.network.threads")] == [4, 7, 5]
    assert settings.given["num.io.threads"].origin == "environment variable KBROKER_NUM_IO_THREADS"


def test_data_wins_over_log_dirs_and_a_home_is_expanded(tmp_path: Path) -> None:
    assert config("log.dirs=/a,/b", data=tmp_path).log_dirs == (tmp_path,)
    assert config("log.dirs=/a, /b").log_dirs == (Path("/a"), Path("/b"))
    assert config("log.dir=~/x").log_dirs == (Path.home() / "x",)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (
            "log.segment.bytes=ten",
            "--override: log.segment.bytes=ten: must be a whole number of bytes from 14 to 2147483647",
        ),
        ("log.segment.bytes=13", "log.segment.bytes=13: must be"),
        ("log.segment.bytes=2147483648", "log.segment.bytes=2147483648: must be"),
        ("log.segment.bytes=" + "9" * 100_000, "log.segment.bytes=99999"),
        ("log.segment.bytes=1_000", "log.segment.bytes=1_000: must be"),
        ("log.segment.bytes=", "log.segment.bytes=: must be"),
        ("log.retention.ms=0", "must be a whole number of milliseconds from 1 to 9223372036854775807 or -1"),
        ("auto.create.topics.enable=yes", "auto.create.topics.enable=yes: must be true or false"),
        ("compression.type=brotli", "compression.type=brotli: must be one of uncompressed, zstd"),
        ("log.cleanup.policy=delete,squash", "must be a comma-separated list of compact, delete"),
        ("log.cleaner.min.cleanable.ratio=1.5", "must be a number from 0 to 1"),
        ("listeners=nonsense", "--override: listeners=nonsense: 'nonsense' is not NAME://HOST:PORT"),
        ("listeners=PLAINTEXT://:99999", "port 99999 is larger than 65535"),
        ("listeners=PLAINTEXT://::1:9092", "an IPv6 host stands in [brackets]"),
        (
            "listeners=INSIDE://:9092",
            "INSIDE has no security protocol; add INSIDE:PLAINTEXT to listener.security.protocol.map",
        ),
        ("listeners=PLAINTEXT://:1,PLAINTEXT://:2", "the name PLAINTEXT is there twice"),
        ("listeners=SSL://:9092", "SSL wants SSL, which is not served yet"),
        ("listeners=", "no listener for clients"),
        ("listener.security.protocol.map=A:B", "'A:B' is not NAME:PROTOCOL"),
        ("advertised.listeners=OTHER://a:1", "OTHER has no security protocol"),
        ("advertised.listeners=SSL://a:1", "SSL is not among listeners"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "clients cannot connect to '0.0.0.0'"),
        ("inter.broker.listener.name=NONE", "inter.broker.listener.name=NONE: not among listeners"),
        (
            "group.min.session.timeout.ms=9000000",
            "group.min.session.timeout.ms=9000000 is larger than group.max.session.timeout.ms=1800000",
        ),
        ("log.dirs=/a,/a", "a directory is there twice"),
        ("group.coordinator.rebalance.protocols=consumer", "protocols=consumer: classic cannot be left out"),
        *(
            (
                f"max.connections.per.ip.overrides={text}",
                f"--override: max.connections.per.ip.overrides={text}: must be HOST:COUNT pairs, separated by commas",
            )
            for text in ("a", "a:", ":5", "a:x", "a:-1", "a:5,b", "a:2147483648", "a b:5", "a:5;b:6", "[::1:5")
        ),
        ("kbroker.http.address=9100", "kbroker.http.address=9100: not HOST:PORT"),
        ("authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "kbroker does not check access yet"),
        ("nothing", "--override nothing: not NAME=VALUE"),
    ],
)
def test_a_malformed_value_is_refused_with_place_and_what_is_allowed(override: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        config(override)
    assert says in str(error.value)


def test_an_error_in_a_file_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^server.properties:3: num.partitions=0: must be a whole number from 1 to"):
        config(text="\n\nnum.partitions=0\n", tmp_path=tmp_path)


def test_an_unknown_name_is_named_with_the_nearest_known_one() -> None:
    settings = config("log.segment.byte=100", "zzz=1")
    assert "log.segment.byte: unknown setting; did you mean log.segment.bytes?" in notices(settings)
    assert "zzz: unknown setting" in notices(settings)
    with pytest.raises(ConfigError, match=r"(?s)did you mean log.segment.bytes.*zzz"):
        refuse_unknown(settings)


def test_old_names_are_understood() -> None:
    settings = config(
        "brokerid=7", "log.file.size=1000", "log.cleanup.interval.mins=2", "log.flush.interval=500", "port=9999"
    )
    assert settings.node_id == 7
    assert settings["log.segment.bytes"] == 1000
    assert settings["log.retention.check.interval.ms"] == 120_000
    assert settings["log.flush.interval.messages"] == 500
    assert settings.listeners == (Endpoint("PLAINTEXT", "PLAINTEXT", "", 9999),)
    assert "--override: log.file.size is an old name of log.segment.bytes" in notices(settings)


def test_a_name_that_stands_twice_in_a_file_is_pointed_out(tmp_path: Path) -> None:
    settings = config(text="num.partitions=1\nnum.partitions=2\n", tmp_path=tmp_path)
    assert settings["num.partitions"] == 2
    assert "server.properties:2: num.partitions is there twice; server.properties:1 is not used" in notices(settings)


@pytest.mark.parametrize(
    ("overrides", "name", "value"),
    [
        ([], "log.retention.ms", 168 * 3600 * 1000),
        (["log.retention.hours=1"], "log.retention.ms", 3600 * 1000),
        (["log.retention.hours=1", "log.retention.minutes=2"], "log.retention.ms", 120_000),
        (["log.retention.ms=3", "log.retention.minutes=2"], "log.retention.ms", 3),
        (["log.retention.hours=-1"], "log.retention.ms", -1),
        (["log.roll.hours=2"], "log.roll.ms", 7200_000),
        (["log.roll.jitter.hours=2"], "log.roll.jitter.ms", 7200_000),
        (["log.flush.scheduler.interval.ms=5"], "log.flush.interval.ms", 5),
        (["log.flush.scheduler.interval.ms=5", "log.flush.interval.ms=9"], "log.flush.interval.ms", 9),
    ],
)
def test_coarser_settings_stand_in_for_finer_ones(overrides: list[str], name: str, value: int) -> None:
    assert config(*overrides)[name] == value


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", {}),
        (" , ", {}),
        ("10.0.0.1:5", {"10.0.0.1": 5}),
        ("a.example:0, b : 2147483647 ,a.example:7", {"a.example": 7, "b": 2**31 - 1}),
        ("[::1]:3,2001:db8::1:4", {"::1": 3, "2001:db8::1": 4}),
    ],
)
def test_counts_of_hosts_are_read_as_kafka_reads_them(text: str, counts: dict[str, int]) -> None:
    assert (
        parse_counts(config(f"max.connections.per.ip.overrides={text}")["max.connections.per.ip.overrides"]) == counts
    )


def test_listeners_on_both_families_and_with_names_are_understood() -> None:
    settings = config(
        "listeners=IN://[::]:9092,OUT://0.0.0.0:9093,NAMED://my-host.example:0",
        "listener.security.protocol.map=IN:PLAINTEXT,OUT:PLAINTEXT,NAMED:PLAINTEXT",
        "advertised.listeners=OUT://[2001:db8::1]:19093",
        "inter.broker.listener.name=OUT",
    )
    assert [str(endpoint) for endpoint in settings.listeners] == [
        "IN://[::]:9092",
        "OUT://0.0.0.0:9093",
        "NAMED://my-host.example:0",
    ]
    assert [str(endpoint) for endpoint in settings.advertised_listeners] == ["OUT://[2001:db8::1]:19093"]
    assert settings.inter_broker_listener == "OUT"


def test_hosts_of_old_kafka_are_advertised() -> None:
    settings = config("host.name=10.0.0.1", "advertised.host.name=example.org", "advertised.port=1234")
    assert [str(e) for e in settings.listeners] == ["PLAINTEXT://10.0.0.1:9092"]
    assert [str(e) for e in settings.advertised_listeners] == ["PLAINTEXT://example.org:1234"]


def test_one_port_on_two_addresses_is_allowed_and_on_every_address_is_not() -> None:
    maps = "listener.security.protocol.map=A:PLAINTEXT,B:PLAINTEXT"
    assert len(config(maps, "listeners=A://127.0.0.1:9092,B://127.0.0.2:9092").listeners) == 2
    assert len(config(maps, "listeners=A://0.0.0.0:9092,B://[::]:9092").listeners) == 2
    assert len(config(maps, "listeners=A://:0,B://:0").listeners) == 2
    with pytest.raises(ConfigError, match="port 9092 is there twice"):
        config(maps, "listeners=A://:9092,B://127.0.0.2:9092")


def test_node_id_and_broker_id_are_one() -> None:
    assert config("node.id=3")["broker.id"] == 3
    assert config("node.id=3", "broker.id=3").node_id == 3
    with pytest.raises(ConfigError, match=r"node.id=3 and broker.id=4 differ"):
        config("node.id=3", "broker.id=4")


def test_an_unknown_environment_variable_of_ours_is_pointed_out() -> None:
    settings = config(env={"KBROKER_NUM_PARTITION": "3", "KBROKER_BUILD": "debug"})
    assert (
        notices(settings)
        == "environment variable KBROKER_NUM_PARTITION: num.partition: unknown setting; did you mean num.partitions?"
    )


def test_dynamic_settings_change_and_others_do_not() -> None:
    before = config("num.partitions=3")
    after = before.with_dynamic({"log.retention.ms": "5", "message.max.bytes": "10"})
    assert (after["log.retention.ms"], after["message.max.bytes"], after["num.partitions"]) == (5, 10, 3)
    assert before["log.retention.ms"] == 168 * 3600 * 1000
    assert after.given["log.retention.ms"].origin == "dynamic"
    assert (after.text("log.retention.ms"), before.text("log.retention.ms")) == ("5", None)
    assert (after.text("num.io.threads"), after.text("nonsense")) == ("4", None)
    for name, says in (("listeners", "cannot be changed"), ("nonsense", "unknown setting")):
        with pytest.raises(ConfigError, match=says):
            before.with_dynamic({name: "x"})


def test_no_name_is_known_twice() -> None:
    assert not set(SETTINGS) & set(ALIASES)
    assert not set(SETTINGS) & set(NOT_READ)
    assert not set(ALIASES) & set(NOT_READ)
    variables = [environment_name(name) for name in (*SETTINGS, *ALIASES, *NOT_READ)]
    assert len(set(variables)) == len(variables)


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_each_default_parses_back_to_itself(setting) -> None:
    if setting.default is not None:
        assert setting.parse(format_value(setting.default)) == setting.default


@given(st.sampled_from(sorted(SETTINGS)), st.text())
def test_any_text_is_a_value_or_our_error(name: str, text: str) -> None:
    try:
        value = SETTINGS[name].parse(text)
    except ConfigError as error:
        assert name in str(error)
    else:
        again = SETTINGS[name].parse(format_value(value))
        assert again == value or value != value


@given(st.sampled_from(sorted(n for n, s in SETTINGS.items() if s.kind in INTEGER_RANGE)), st.integers(-(2**70), 2**70))
def test_whole_numbers_are_accepted_exactly_within_their_range(name: str, number: int) -> None:
    setting = SETTINGS[name]
    low, high = INTEGER_RANGE[Kind(setting.kind)]
    low = low if setting.limits.at_least is None else max(low, setting.limits.at_least)
    high = high if setting.limits.at_most is None else min(high, setting.limits.at_most)
    try:
        assert setting.parse(str(number)) == number
        assert low <= number <= high or number in setting.limits.also
    except ConfigError:
        assert not low <= number <= high and number not in setting.limits.also


def test_everything_that_is_wrong_is_told_at_once_each_with_its_line(tmp_path: Path) -> None:
    text = """log.segment.bytes=ten
log.retention.hors=5
num.io.threads=0
group.min.session.timeout.ms=9
group.max.session.timeout.ms=8
log.roll.jitter.ms=9x
listeners=PLAINTEXT//:9092
kbroker.http.address=9464
"""
    with pytest.raises(ConfigError) as refused:
        config("log.dirs", "max.connections=-1", text=text, tmp_path=tmp_path)
    first, *lines = str(refused.value).splitlines()
    assert first == "9 settings are wrong:"
    assert [line.strip().partition("=")[0] for line in lines] == [
        "--override log.dirs: not NAME",
        "server.properties:1: log.segment.bytes",
        "server.properties:3: num.io.threads",
        "server.properties:6: log.roll.jitter.ms",
        "--override: max.connections",
        "server.properties:4: group.min.session.timeout.ms",
        "server.properties:7: listeners",
        "server.properties:8: kbroker.http.address",
        "server.properties:2: log.retention.hors: unknown setting; did you mean log.retention.hours?",
    ]


def test_a_name_without_its_dots_gets_the_nearest_one() -> None:
    assert "did you mean log.retention.ms?" in notices(config("logretentionms=5"))
    assert "did you mean num.partitions?" in notices(config("num_partitions=5"))


def test_settings_that_are_read_again_are_taken_where_they_may_change_and_told_where_not(tmp_path: Path) -> None:
    running = config(text="log.retention.hours=2\nlog.segment.bytes=1000\nnum.io.threads=3\n", tmp_path=tmp_path)
    fresh = config(text="log.retention.hours=1\nlog.segment.bytes= 1000\nnum.partitions=2\n", tmp_path=tmp_path)
    reading = running.read_again(fresh)
    assert (reading.taken, reading.waiting) == (["log.retention.hours=1"], ["num.io.threads", "num.partitions"])
    assert [reading.config[name] for name in ("log.retention.ms", "num.io.threads", "num.partitions")] == [
        3600000,
        3,
        1,
    ]
    assert reading.config.read_again(fresh).taken == []
