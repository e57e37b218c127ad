"""Appends of clients on other threads, while real logs change their roles."""

from __future__ import annotations

import threading

from kbroker.errors import ErrorCode
from tests.kit.logs.home import ManualClock, batch_of, read_all
from tests.kit.logs.hosted import HostedLogs
from tests.kit.logs.quick_disk import quick_directory
from tests.kit.parts.members import FIRST, ME, Member, role


def test_no_record_comes_in_once_the_controller_has_the_answer_that_another_broker_leads() -> None:
    with quick_directory() as folder:
        logs = HostedLogs(folder, clock=ManualClock())
        member = Member(logs, logs.clock)
        member.tell_brokers(1, 2, 3)
        member.tell_roles(role(0, isr=[ME]))
        log = logs.get(FIRST)
        assert log is not None
        stopping = threading.Event()
        taken: list[int] = []
        codes: set[int] = set()

        def append(name: bytes) -> None:
            while not stopping.is_set():
                code, appended = log.state.append(batch_of([name]), logs.clock.wall_ms(), acks=1)
                codes.add(code)
                if code == ErrorCode.NONE:
                    taken.append(appended.base_offset)

        threads = [threading.Thread(target=append, args=(b"%d" % number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for epoch in range(1, 200):
            leader = 2 if epoch % 2 else ME
            member.tell_roles(role(0, leader=leader, leader_epoch=epoch, isr=[leader]))
            before = log.state.log_end_offset
            if leader != ME:
                stopping.wait(0.0005)
                assert log.state.log_end_offset == before
            else:
                assert log.state.epoch_start_offset <= before
        stopping.set()
        for thread in threads:
            thread.join()
        assert codes == {ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER}
        assert sorted(taken) == list(range(log.state.log_end_offset))
        member.tell_roles(role(0, leader_epoch=200, replicas=[ME], isr=[ME]))
        assert len(read_all(log, 0, 1 << 30)) == len(taken)
        logs.close()
