"""A slow and obvious model of a transactional id: its state, the pending one, and tables of who may do what."""

from __future__ import annotations

from typing import Any

LAST_CLIENT_EPOCH = 32766

ENDS = {  # state, commit -> what EndTxn of the right producer says
    ("Empty", True): "INVALID_TXN_STATE", ("Empty", False): "INVALID_TXN_STATE",
    ("Ongoing", True): "PrepareCommit", ("Ongoing", False): "PrepareAbort",
    ("PrepareCommit", True): "CONCURRENT_TRANSACTIONS", ("PrepareCommit", False): "INVALID_TXN_STATE",
    ("PrepareAbort", True): "INVALID_TXN_STATE", ("PrepareAbort", False): "CONCURRENT_TRANSACTIONS",
    ("CompleteCommit", True): "NONE", ("CompleteCommit", False): "INVALID_TXN_STATE",
    ("CompleteAbort", True): "INVALID_TXN_STATE", ("CompleteAbort", False): "NONE",
}  # fmt: skip
BUMPS = {  # state, commit -> what EndTxn of a client that gets a new epoch hears: of the owner, and of who asks again
    ("Empty", True): ("INVALID_TXN_STATE", "PRODUCER_FENCED"), ("Empty", False): ("PrepareAbort", "PRODUCER_FENCED"),
    ("Ongoing", True): ("PrepareCommit", "PRODUCER_FENCED"), ("Ongoing", False): ("PrepareAbort", "PRODUCER_FENCED"),
    ("PrepareCommit", True): ("PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS"),
    ("PrepareCommit", False): ("PRODUCER_FENCED", "INVALID_TXN_STATE"),
    ("PrepareAbort", True): ("PRODUCER_FENCED", "INVALID_TXN_STATE"),
    ("PrepareAbort", False): ("PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS"),
    ("CompleteCommit", True): ("INVALID_TXN_STATE", "NONE"),
    ("CompleteCommit", False): ("PrepareAbort", "INVALID_TXN_STATE"),
    ("CompleteAbort", True): ("INVALID_TXN_STATE", "INVALID_TXN_STATE"),
    ("CompleteAbort", False): ("PrepareAbort", "NONE"),
}  # fmt: skip
ADDS = {  # state -> what AddPartitionsToTxn of the right producer says, of partitions that are not in it
    "Empty": "Ongoing", "CompleteCommit": "Ongoing", "CompleteAbort": "Ongoing", "Ongoing": "Ongoing",
    "PrepareCommit": "CONCURRENT_TRANSACTIONS", "PrepareAbort": "CONCURRENT_TRANSACTIONS",
}  # fmt: skip
COMPLETES = {"PrepareCommit": "CompleteCommit", "PrepareAbort": "CompleteAbort"}


class ModelId:
    """The model. `ask` functions return the name of an error, or that of the state that is pending from then on."""

    def __init__(self, producer_id: int):
        self.owner = (producer_id, -1)
        self.asked_with: tuple[int, int] | None = None
        """What the owner had when it asked for what it has now; None when it began anew."""
        self.state = "Empty"
        self.partitions: set[Any] = set()
        self.goal: dict[str, Any] | None = None
        self.previous_id = -1
        """Whose record it was before the newest."""
        self.next_id = -1
        """Who the owner is, with epoch 0, when the transaction is complete."""

    def init(self, expected: tuple[int, int] | None, new_id: int) -> str:
        if self.goal:
            return "CONCURRENT_TRANSACTIONS"
        producer_id, epoch = self.owner
        has_owner = epoch >= 0
        if expected is None or not has_owner:
            known = "as anybody"
        elif expected == self.owner:
            known = "as the owner"
        elif expected[0] == producer_id or (expected[0] == self.previous_id and expected[1] >= LAST_CLIENT_EPOCH):
            known = "again" if self.asked_with is not None and expected[1] == self.asked_with[1] else "too old"
        else:
            return "PRODUCER_FENCED"
        if self.state == "Ongoing":
            return self.fence(new_id)
        if self.state in COMPLETES:
            return "CONCURRENT_TRANSACTIONS"
        if known == "too old":
            return "PRODUCER_FENCED"
        if known == "again":
            return self.pend(state="Empty", owner=self.owner, asked_with=self.asked_with)
        asked_with = self.owner if known == "as the owner" else None
        if epoch >= LAST_CLIENT_EPOCH:
            return self.pend(state="Empty", owner=(new_id, 0), asked_with=asked_with)
        return self.pend(state="Empty", owner=(producer_id, epoch + 1), asked_with=asked_with)

    def add(self, who: tuple[int, int], partitions: set[Any]) -> str:
        if self.goal:
            return "CONCURRENT_TRANSACTIONS"
        if error := self.check(who):
            return error
        if self.state == "Ongoing" and partitions <= self.partitions:
            return "NONE"
        said = ADDS[self.state]
        return self.pend(state=said, partitions=self.partitions | partitions) if said == "Ongoing" else said

    def end(self, who: tuple[int, int], commit: bool) -> str:
        if error := self.check(who):
            return error
        if self.goal:
            return "CONCURRENT_TRANSACTIONS"
        said = ENDS[self.state, commit]
        return self.pend(state=said) if said in COMPLETES else said

    def bump(self, who: tuple[int, int], commit: bool, new_id: int) -> str:
        if self.goal:
            return "CONCURRENT_TRANSACTIONS"
        again = who[1] + 1 == self.owner[1]
        if who[0] == self.previous_id and who[1] == LAST_CLIENT_EPOCH and self.owner[1] == 0:
            again = True
        elif who[0] != self.owner[0]:
            return "INVALID_PRODUCER_ID_MAPPING"
        if not again and who[1] != self.owner[1]:
            return "PRODUCER_FENCED"
        said = BUMPS[self.state, commit][again]
        return self.pend_bump(said, new_id) if said in COMPLETES else said

    def check(self, who: tuple[int, int]) -> str:
        if who[0] != self.owner[0]:
            return "INVALID_PRODUCER_ID_MAPPING"
        return "" if who == self.owner else "PRODUCER_FENCED"

    def fence(self, new_id: int) -> str:
        return self.pend_bump("PrepareAbort", new_id)

    def pend_bump(self, state: str, new_id: int) -> str:
        producer_id, epoch = self.owner
        is_last = epoch >= LAST_CLIENT_EPOCH
        return self.pend(
            state=state, owner=(producer_id, epoch + 1), asked_with=self.owner, next_id=new_id if is_last else -1
        )

    def complete(self) -> str:
        owner = self.owner if self.next_id == -1 else (self.next_id, 0)
        return self.pend(state=COMPLETES[self.state], partitions=set(), owner=owner, next_id=-1)

    def pend(self, **goal: Any) -> str:
        self.goal = goal
        return str(goal["state"])

    def stored(self, ok: bool) -> None:
        goal, self.goal = self.goal, None
        assert goal is not None
        if not ok:
            return
        self.state = goal["state"]
        self.previous_id = self.owner[0]
        self.partitions = set() if self.state == "Empty" else goal.get("partitions", self.partitions)
        self.owner = goal.get("owner", self.owner)
        self.asked_with = goal.get("asked_with", self.asked_with)
        self.next_id = goal.get("next_id", self.next_id)
