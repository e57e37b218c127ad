"""A broker is refused before it can do harm: each rule of joining, with the line that its user reads."""

import pytest

from kbroker.cluster.joining import (
    CannotJoin,
    InterBrokerListeners,
    check_addresses,
    check_cluster_id,
    check_listeners,
    check_tree,
    same_address,
)
from kbroker.coordination.paths import BrokerRegistration, ControllerRegistration, FeatureNode
from kbroker.model import Endpoint

INSIDE = Endpoint("INSIDE", "PLAINTEXT", "a", 1)
OUTSIDE = Endpoint("OUTSIDE", "SSL", "a", 2)
THROUGH_INSIDE = InterBrokerListeners("INSIDE")


def broker(*endpoints: Endpoint) -> BrokerRegistration:
    return BrokerRegistration(endpoints, None, 0)


def test_the_first_broker_may_have_any_listeners() -> None:
    check_listeners([INSIDE], THROUGH_INSIDE, {})


def test_brokers_with_the_same_listeners_fit_each_other() -> None:
    check_listeners([OUTSIDE, INSIDE], THROUGH_INSIDE, {1: broker(INSIDE, OUTSIDE), 2: broker(OUTSIDE, INSIDE)})


def test_an_inter_broker_listener_that_one_other_lacks_is_refused() -> None:
    with pytest.raises(CannotJoin, match=r"listener INSIDE .*is not one of broker 2, which has OUTSIDE"):
        check_listeners([INSIDE, OUTSIDE], THROUGH_INSIDE, {1: broker(INSIDE, OUTSIDE), 2: broker(OUTSIDE)})


def test_a_control_plane_listener_that_the_others_lack_is_refused() -> None:
    names = InterBrokerListeners("OUTSIDE", "INSIDE")
    with pytest.raises(CannotJoin, match=r"INSIDE \(control\.plane\.listener\.name"):
        check_listeners([INSIDE, OUTSIDE], names, {1: broker(OUTSIDE)})


def test_an_inter_broker_listener_with_another_protocol_is_refused() -> None:
    other = broker(INSIDE._replace(security_protocol="SASL_SSL"))
    with pytest.raises(CannotJoin, match="INSIDE has security protocol PLAINTEXT here and SASL_SSL on broker 4"):
        check_listeners([INSIDE], THROUGH_INSIDE, {4: other})


def test_a_listener_of_all_others_must_be_here_too() -> None:
    with pytest.raises(CannotJoin, match="listener OUTSIDE is missing here, and broker 1, 2 has it"):
        check_listeners([INSIDE], THROUGH_INSIDE, {1: broker(INSIDE, OUTSIDE), 2: broker(INSIDE, OUTSIDE)})


def test_a_listener_that_only_some_others_have_may_be_missing() -> None:
    check_listeners([INSIDE], THROUGH_INSIDE, {1: broker(INSIDE, OUTSIDE), 2: broker(INSIDE)})


LOOPBACK_HOSTS = ("127.0.0.1", "127.8.9.1", "::1", "localhost")


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
def test_an_address_that_only_its_own_machine_reaches_is_refused_among_others(host: str) -> None:
    here, others = (
        [INSIDE._replace(host=host), OUTSIDE],
        {1: broker(INSIDE._replace(host="127.0.0.1")), 4: broker(INSIDE)},
    )
    with pytest.raises(
        CannotJoin, match=rf"advertised\.listeners .*{host}\S*, .*only this machine.*broker 4 .* INSIDE://a:1"
    ) as raised:
        check_addresses(here, THROUGH_INSIDE, others)
    assert "\n" not in str(raised.value)


def test_the_address_for_a_controller_that_only_its_own_machine_reaches_is_refused_too() -> None:
    names = InterBrokerListeners("OUTSIDE", "INSIDE")
    with pytest.raises(CannotJoin, match="listener INSIDE"):
        check_addresses([INSIDE._replace(host="::1"), OUTSIDE], names, {1: broker(OUTSIDE, INSIDE)})


@pytest.mark.parametrize("host", LOOPBACK_HOSTS)
def test_brokers_of_one_machine_may_all_have_addresses_that_only_it_reaches(host: str) -> None:
    others = {each: broker(INSIDE._replace(host=host)) for each, host in enumerate(LOOPBACK_HOSTS)}
    check_addresses([INSIDE._replace(host=host), OUTSIDE], THROUGH_INSIDE, others)
    check_addresses([INSIDE._replace(host=host)], THROUGH_INSIDE, {})


def test_a_listener_of_clients_may_have_an_address_that_only_its_own_machine_reaches() -> None:
    check_addresses([INSIDE, OUTSIDE._replace(host="localhost")], THROUGH_INSIDE, {1: broker(INSIDE, OUTSIDE)})


def test_log_directories_of_another_cluster_are_refused() -> None:
    check_cluster_id(None, None)
    check_cluster_id("here", None)
    check_cluster_id("here", "here")
    with pytest.raises(CannotJoin, match=r"it holds cluster there, and the log directories belong to cluster here"):
        check_cluster_id("there", "here")
    with pytest.raises(CannotJoin, match=r"it holds no cluster.*kbroker cluster export"):
        check_cluster_id(None, "here")


def test_a_cluster_that_moves_to_kraft_is_refused() -> None:
    check_tree(None, ControllerRegistration(1, 0), has_migration=False)
    for controller, has_migration in ((None, True), (ControllerRegistration(3000, 0, 1), False)):
        with pytest.raises(CannotJoin, match="KRaft"):
            check_tree(None, controller, has_migration=has_migration)


def test_a_finalized_feature_that_is_not_known_is_refused() -> None:
    check_tree(FeatureNode(True, {}), None, has_migration=False)
    check_tree(FeatureNode(False, {"later": 1}), None, has_migration=False)
    with pytest.raises(CannotJoin, match="later=1"):
        check_tree(FeatureNode(True, {"later": 1}), None, has_migration=False)


def test_the_broker_with_the_same_address_is_found() -> None:
    others = {3: broker(INSIDE._replace(port=7)), 2: broker(OUTSIDE._replace(host="b"), OUTSIDE)}
    assert same_address([INSIDE], others) is None
    assert same_address([INSIDE, OUTSIDE], others) == 2
