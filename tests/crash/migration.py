"""Three Apache Kafkas become three kbrokers, broker by broker, and Kafkas again, under load (`make migration`).

Each broker is stopped, and one of the other kind starts with its id, address and data. The load is that of the cluster
rounds: transactions, producers of librdkafka and ours, a group and a watcher. At the end nothing acknowledged may be
missing, and the replicas' bytes, the tree in ZooKeeper, the metadata and the files are looked at.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from tests.crash.cluster_rounds import SETTINGS, Result, Round, noting, own_faults
from tests.kit.cluster.cluster import Cluster

KAFKAS = ("kafka", "kafka", "kafka")
STAY_S = 3.0
"""How long the load goes on with each new set of brokers."""


def run(seed: int = 0, keep: Path | None = None) -> Result:
    """Migrate there and back."""
    result = Result(seed, KAFKAS)
    folder = Path(tempfile.mkdtemp(prefix="migration-"))
    try:
        place = keep and keep / f"migration-{seed}"
        with Cluster(KAFKAS, SETTINGS) as cluster, noting(result, cluster, folder, place):
            one = Round(cluster, folder, seed, result, None)
            with cluster.entered():
                one.run(lambda: migrate(cluster, result))
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def migrate(cluster: Cluster, result: Result) -> None:
    for kind in ("kbroker", "kafka"):
        for node_id in list(cluster.nodes):
            cluster.replace(node_id, kind)
            result.faults[f"broker to {kind}"] += 1
            time.sleep(STAY_S)
        result.wrong += own_faults(cluster)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where to keep what there is of bad rounds")
    arguments = parser.parse_args()
    results = [run(seed, arguments.keep) for seed in range(arguments.rounds)]
    print(*results, sep="\n")
    return int(any(result.is_bad for result in results) or all(result.not_begun for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
