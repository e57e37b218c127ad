"""The order of a load: roll forward, plan, read, check, commit, publish. A killed load goes on when it is run again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from kbroker.model import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition
from kbroker.spark.loader.commits.commit import Commit, CommitLog, LakeFile, TopicState
from kbroker.spark.loader.commits.commit_files import FileCommits, files_now, fold, replaced_by
from kbroker.spark.loader.commits.publish import RUN, is_published, publish
from kbroker.spark.loader.commits.topic_commits import TopicCommits
from kbroker.spark.loader.errors import LoadFailed, storage_errors
from kbroker.spark.loader.lake import identity
from kbroker.spark.loader.lake.lock import locked
from kbroker.spark.loader.lake.storage import PLANS, STAGING, Directory, storage_of
from kbroker.spark.loader.plans.brokers import Brokers, Partitions
from kbroker.spark.loader.plans.complete_hours import read_up_to_ms, sorted_hours
from kbroker.spark.loader.plans.plan import ALL_AT_ONCE, Plan, beginnings, to_read
from kbroker.spark.loader.plans.reload import reload_from
from kbroker.spark.loader.settings import EVENT, Settings
from kbroker.spark.loader.summary import Preview, Summary, preview, summarized
from kbroker.spark.loader.tasks.spark_tasks import Tasks
from kbroker.spark.loader.tasks.task import Job, Manifest, run_unit
from kbroker.spark.loader.tasks.values import check_values, value_type
from kbroker.spark.loader.verification.audit import publish_audit
from kbroker.spark.options.format_options import BINARY
from kbroker.spark.options.offsets import Offsets

log = logging.getLogger("kbroker.spark")

PLANS_KEPT = 100
HOST = socket.gethostname()
RUN_NAME = re.compile(r"(\d{10})-([0-9a-f]+)(?:\.json)?")


class Watcher:
    """Is told how far a load has come: make a subclass, and override the methods that are wanted."""

    def planned(self, plan: Plan) -> None:
        """Called when a round of the load begins, with its plan."""

    def progressed(self, rows: int, size: int) -> None:
        """Called when tasks have finished `rows` more records, which are about `size` bytes of the plan's size."""

    def committed(self, commit: Commit) -> None:
        """Called when the round's records are in the lake; the files get their names next."""


class Loader:
    """Loads into one lake. `run` may be called again for what has come since; only the first call reloads."""

    def __init__(self, settings: Settings, tasks: Tasks, watcher: Watcher | None = None):
        """Raises WrongOption when `settings.formats` is wrong, before Spark starts or a lake is made."""
        check_values(settings)
        self.settings = settings
        self.watcher = watcher or Watcher()
        self._tasks = tasks
        self._storage = storage_of(settings)
        self._reloads = settings.reload_since_ms is not None
        self._is_locked = False

    def run(self) -> Summary:
        """Load everything that the brokers have now, in one commit or several.

        Raises LoadFailed when it does not come to its end; what is committed by then stays.
        """
        began = time.monotonic()
        commits: list[Commit] = []
        summary = Summary()
        with storage_errors(self._storage.name), self._opened() as (brokers, commit_log):
            last = commit_log.last()
            if last is not None:
                summary.was_cut_off = not is_published(self._storage, last)
                if summary.was_cut_off:
                    self.publish(last)
            self._clean(last)
            first = found = brokers.partitions(brokers.topics())
            while (plan := self.plan(brokers, last, found)) is not None:
                last = self._round(brokers, commit_log, last, plan)
                self._reloads = False
                commits.append(last)
                found = brokers.partitions(brokers.topics()).up_to(first)
            if last is not None and not commits:
                self._show(brokers, last, first.ends)
        self._reloads = False
        summary.commits = [commit.number for commit in commits]
        summary.topics = summarized(commits)
        summary.lost = [each for commit in commits for each in commit.lost]
        summary.seconds = time.monotonic() - began
        return summary

    def preview(self) -> Preview | None:
        """Return what `run` would begin with, or None if there is nothing to do. Nothing is written."""
        with storage_errors(self._storage.name), Brokers(self.settings) as brokers:
            cluster_id = brokers.cluster_id()
            last = None
            if identity.is_lake(self._storage):
                identity.check(self._storage, self.settings, cluster_id)
                commit_log = self._commit_log(is_reader=True)
                try:
                    last = commit_log.last()
                finally:
                    commit_log.close()
            plan = self.plan(brokers, last, brokers.partitions(brokers.topics()))
            if plan is None or not (plan.ranges or plan.lost):
                return None
            return preview(plan.divided(os.cpu_count() or 1, self.settings.task_bytes))

    # --- its steps ------------------------------------------------------------------------------------------

    def plan(self, brokers: Brokers, last: Commit | None, found: Partitions) -> Plan | None:
        """Return the plan of the next commit, not divided into tasks yet; None if there is nothing to do."""
        settings = self.settings
        begun = beginnings(last, found, self._fresh(brokers, last, found), settings.data_loss)
        starts, removed = begun.starts, tuple[str, ...]()
        if self._reloads and last is not None:
            starts, removed = self._reload(brokers, last, found, begun.starts)
        else:
            self._check_value_formats(begun.topics)
        number = 1 if last is None else last.number + 1
        sizes = brokers.record_bytes(found, starts)
        # Records that replace files go into the commit that removes the files, all at once: nobody knows how long the
        # brokers keep them.
        ranges = to_read(starts, found.ends, sizes, ALL_AT_ONCE if removed else settings.commit_bytes)
        plan = Plan(
            number=number,
            run=uuid.uuid4().hex[:12],
            loaded_at_ms=time.time_ns() // 1_000_000,
            topics={name: replace(state, value_format=settings.value_format) for name, state in begun.topics.items()},
            starts=starts,
            ranges=ranges,
            whole_ends=found.whole_ends,
            asked_at_ms=found.asked_at_ms,
            removed=removed,
            lost=begun.lost,
        )
        if ranges or begun.lost or self._has_beginnings(last, starts):
            return plan
        return plan if committed(last, plan, [], settings).complete_hours else None

    def read(self, plan: Plan) -> list[Manifest]:
        """Read the plan's ranges with tasks. Nothing of that is in the lake before `commit`."""
        if not plan.units:
            return []
        generations = {name: state.generation for name, state in plan.topics.items() if state.generation}
        settings, kind = value_type(self.settings, sorted(plan.topics))
        job = Job(settings, f"{STAGING}/{plan.name}", plan.loaded_at_ms, generations, kind)
        return self._tasks.run(partial(run_unit, job), plan.units, Manifest.weight, self.watcher.progressed)

    def check(self, brokers: Brokers, plan: Plan, manifests: list[Manifest]) -> None:
        """Raise LoadFailed when the tasks have not read what was planned, or a topic was made again meanwhile."""
        planned = sorted(each for unit in plan.units for each in unit.ranges)
        read = sorted((each.topic, each.partition, each.start, each.until) for one in manifests for each in one.ranges)
        if [tuple(each) for each in planned] != read:
            raise LoadFailed(f"the tasks have read {len(read)} ranges, which are not the {len(planned)} of the plan")
        ids = brokers.topic_ids(plan.topics)
        if changed := sorted(name for name, state in plan.topics.items() if ids[name] != state.topic_id):
            raise LoadFailed(f"topic {changed[0]} was deleted and made again while it was read; nothing is committed")

    def commit(self, commit_log: CommitLog, commit: Commit) -> None:
        """Add a commit. From here on all of it is in the lake; before, nothing. Raises LakeTaken as CommitLog does."""
        commit_log.add(commit)

    def publish(self, commit: Commit) -> None:
        """Write a commit's audit, if one is wanted, and give its files their names. All of it can be done again."""
        settings = self.settings
        if settings.audit_topic is not None and settings.time == EVENT:
            lake_id = identity.lake_id(self._storage)
            publish_audit(settings, settings.audit_topic, lake_id, commit, replaced_by(self._storage, commit))
        publish(self._storage, commit)

    # --- and what is around them ------------------------------------------------------------------------------

    def _round(self, brokers: Brokers, commit_log: CommitLog, last: Commit | None, plan: Plan) -> Commit:
        settings = self.settings
        if plan.ranges:
            plan = plan.divided(self._tasks.slots, settings.task_bytes)
        self.watcher.planned(plan)
        try:
            encoded = plan.encode()
            self._storage.write(f"{PLANS}/{plan.name}.json", encoded)
            self._storage.write(f"{STAGING}/{plan.name}/{RUN}", b"")
            manifests = self.read(plan)
            self.check(brokers, plan, manifests)
            commit = committed(last, plan, manifests, settings)
            self.commit(commit_log, commit)
        except BaseException:
            self._give_up(commit_log, plan)
            raise
        self.watcher.committed(commit)
        try:
            try:
                self.publish(commit)
            except KeyboardInterrupt:  # it is in the lake: let readers have all of it
                self.publish(commit)
                raise
        except OSError as error:
            what = (error.strerror or str(error)).lower()
            raise LoadFailed(f"{self._storage.name}: {what}; the next load gives all files their names") from error
        self._show(brokers, commit, plan.starts)
        return commit

    def _check_value_formats(self, topics: dict[str, TopicState]) -> None:
        """Raise LoadFailed when a topic's new files would have another format of values than those in the lake.

        Only a reload may change the format.
        """
        for name, state in topics.items():
            before = state.value_format
            if before not in ("", self.settings.value_format):
                how = "without --value-format" if before == BINARY else f"with --value-format {before}"
                raise LoadFailed(
                    f"{self._storage.name} has values of topic {name} as {before}, which no reader puts together with "
                    f"{self.settings.value_format}: load {how}, or all of it anew with --reload-since"
                )

    def _show(self, brokers: Brokers, commit: Commit, places: Iterable[TopicPartition]) -> None:
        """Commit, for the group in the settings if there is one, the offsets up to which the lake is loaded."""
        if self.settings.group is not None:
            known = commit.next_offsets
            brokers.commit_to(self.settings.group, {place: known[place] for place in places if place in known})

    def _give_up(self, commit_log: CommitLog, plan: Plan) -> None:
        """Remove what a failed round has staged, unless it was committed and only the answer was lost."""
        with contextlib.suppress(Exception):
            last = commit_log.last()
            if last is None or last.run != plan.run:
                self._storage.remove_folder(f"{STAGING}/{plan.name}")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Brokers, CommitLog]]:
        storage, settings = self._storage, self.settings
        with contextlib.ExitStack() as stack:
            there = identity.is_lake(storage)
            brokers = stack.enter_context(Brokers(settings))
            cluster_id = brokers.cluster_id()
            if not there:
                brokers.partitions(brokers.topics())  # raises before a lake is made for topics that do not exist
                identity.make(storage, settings, cluster_id)
            identity.check(storage, settings, cluster_id)
            if isinstance(storage, Directory):
                self._is_locked = stack.enter_context(locked(storage))
            commit_log = self._commit_log()
            stack.callback(commit_log.close)
            yield brokers, commit_log

    def _commit_log(self, *, is_reader: bool = False) -> CommitLog:
        if isinstance(self._storage, Directory):
            return FileCommits(self._storage)
        return TopicCommits(self._storage, self.settings, is_reader=is_reader)

    def _clean(self, last: Commit | None) -> None:
        """Remove what runs have left that cannot commit any more, and put old commits into bundles.

        A run cannot commit any more when its number is committed, or when it is dead.
        """
        number = 0 if last is None else last.number
        for name in self._storage.names(STAGING):
            found = RUN_NAME.fullmatch(name)
            if found and (int(found[1]) <= number or self._is_dead(name)):
                self._storage.remove_folder(f"{STAGING}/{name}")
        plans = sorted(name for name in self._storage.names(PLANS) if RUN_NAME.fullmatch(name))
        self._storage.remove(f"{PLANS}/{name}" for name in plans[:-PLANS_KEPT])
        fold(self._storage)

    def _is_dead(self, name: str) -> bool:
        """Return whether a run was on this machine and is over: if it lived, it would hold the lock that we hold."""
        try:
            return self._is_locked and bool(json.loads(self._storage.read(f"{PLANS}/{name}.json"))["host"] == HOST)
        except (OSError, ValueError, KeyError):
            return False

    def _fresh(self, brokers: Brokers, last: Commit | None, found: Partitions) -> Offsets:
        known = last.topics if last is not None else {}
        places = [place for place in found.ends if place.topic not in known]
        at = self.settings.start
        if at == EARLIEST_TIMESTAMP:
            return {place: found.starts[place] for place in places}
        if at == LATEST_TIMESTAMP:
            return {place: found.ends[place] for place in places}
        there = brokers.offsets(places, at)
        return {place: offset if offset >= 0 else found.ends[place] for place, offset in there.items()}

    def _reload(
        self, brokers: Brokers, last: Commit, found: Partitions, starts: Offsets
    ) -> tuple[Offsets, tuple[str, ...]]:
        assert self.settings.reload_since_ms is not None
        places = [place for place in starts if place in last.next_offsets and starts[place] == last.next_offsets[place]]
        there = brokers.offsets(places, self.settings.reload_since_ms)
        wanted = {place: min(there[place] if there[place] >= 0 else starts[place], starts[place]) for place in places}
        again, removed = reload_from(self._files_of(last, wanted), wanted, found.starts)
        return {**starts, **{place: min(offset, starts[place]) for place, offset in again.items()}}, removed

    def _files_of(self, last: Commit, wanted: Offsets) -> list[LakeFile]:
        topics = {place.topic for place in wanted}
        generations = {name: last.topics[name].generation for name in topics}
        return [
            file
            for file in files_now(self._storage).values()
            if file.topic in topics and file.generation == generations[file.topic]
        ]

    def _has_beginnings(self, last: Commit | None, starts: Offsets) -> bool:
        """Return whether a commit is due even without records to read, to keep the start offsets of new topics."""
        known = last.topics if last is not None else {}
        return self.settings.start != EARLIEST_TIMESTAMP and any(place.topic not in known for place in starts)


def committed(last: Commit | None, plan: Plan, manifests: list[Manifest], settings: Settings) -> Commit:
    """Return the commit that follows `last`: what the lake has once the plan is carried out."""
    before = last or Commit(0, "", 0, {}, {}, {})
    again = {name for name, state in plan.topics.items() if before.topics.get(name, state) != state}
    next_offsets = {place: at for place, at in before.next_offsets.items() if place.topic not in again} | plan.starts
    newest_ms = {place: at for place, at in before.newest_ms.items() if place.topic not in again}
    for manifest in manifests:
        for each, newest in zip(manifest.ranges, manifest.newest_ms, strict=True):
            place = TopicPartition(each.topic, each.partition)
            next_offsets[place] = max(next_offsets[place], each.until)
            newest_ms[place] = max(newest_ms.get(place, -1), newest)
    files = tuple(sorted((file for each in manifests for file in each.files), key=lambda file: file.path))
    open_hours, complete_hours = sorted_hours(
        before.open_hours,
        {(file.topic, file.hour) for file in files if not file.is_quarantine},
        read_up_to_ms(plan.starts, newest_ms, next_offsets, plan.whole_ends, plan.asked_at_ms),
        time=settings.time,
        loaded_at_ms=plan.loaded_at_ms,
        lateness_ms=settings.lateness_ms,
    )
    return Commit(
        number=plan.number,
        run=plan.run,
        loaded_at_ms=plan.loaded_at_ms,
        topics={**before.topics, **plan.topics},
        next_offsets=next_offsets,
        newest_ms=newest_ms,
        ranges=tuple(sorted(each for manifest in manifests for each in manifest.ranges)),
        files=files,
        removed=plan.removed,
        open_hours=open_hours,
        complete_hours=complete_hours,
        lost=plan.lost,
    )
