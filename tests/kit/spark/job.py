"""A job as users submit it. It copies a topic into another one, and prints how many rows both have and who did it.

python -m tests.kit.spark.job MASTER SERVERS TOPIC COPY '{"spark_executor_memory": "512m"}'

Without MASTER, spark-submit sets the master.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame

import kbroker.spark


def main(master: str, servers: str, topic: str, copy: str, conf: str) -> None:
    spark = kbroker.spark.session(master or None, "copy", **json.loads(conf))
    spark.sparkContext.setLogLevel("ERROR")

    def read(name: str) -> DataFrame:
        reader = spark.read.format("kbroker").option("kafka.bootstrap.servers", servers)
        return reader.option("subscribe", name).load()

    read(topic).select("key", "value").write.format("kbroker").options(
        **{"kafka.bootstrap.servers": servers, "topic": copy}
    ).mode("append").save()
    counts = [read(name).select("value").distinct().count() for name in (topic, copy)]
    executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    print(json.dumps({"counts": counts, "executors": len(executors) - 1}))  # one of them is the driver
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
