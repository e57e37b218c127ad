"""What is viewed most now: `python -m examples.activity.trend`, a stream from page_view to the topic trending.

Every few seconds the counts of each subject in windows of a minute, as JSON keyed by window and subject.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import kbroker.spark

if TYPE_CHECKING:  # at run time only after session(), which says in one line what Spark needs and does not find
    from pyspark.sql import DataFrame


def counts(views: DataFrame) -> DataFrame:
    """Return the views of each subject in each window: columns window, subject, views.

    Rows that come more than a minute late are not counted.
    """
    from pyspark.sql import functions as F

    event = F.from_json(F.col("value").cast("string"), "page string")
    subject = F.split_part(event["page"], F.lit("/"), F.lit(1)).alias("subject")
    return (
        views.select(subject, "timestamp")
        .withWatermark("timestamp", "1 minute")
        .groupBy(F.window("timestamp", "1 minute", "10 seconds"), "subject")
        .agg(F.count("*").alias("views"))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    parser.add_argument("--checkpoint", default="./activity/checkpoint")
    parser.add_argument("--seconds", type=float, default=3600, help="how long it runs")
    given = parser.parse_args()
    try:
        spark = kbroker.spark.session(spark_ui_enabled=False, spark_sql_shuffle_partitions=2)
    except RuntimeError as error:
        raise SystemExit(f"trend: {error}") from None
    views = (
        spark.readStream.format("kbroker")
        .option("kafka.bootstrap.servers", given.bootstrap_server)
        .option("subscribe", "page_view")
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = counts(views).selectExpr(
        "concat(date_format(window.start, 'HH:mm:ss'), ' ', subject) key",
        "to_json(struct(window.start start, window.end end, subject, views)) value",
    )

    def publish(changed: DataFrame, _batch: int) -> None:
        writer = changed.write.format("kbroker").mode("append").option("topic", "trending")
        writer.option("kafka.bootstrap.servers", given.bootstrap_server).save()

    # Only what has changed since the batch before is written. Spark gives a sink in Python that in foreachBatch only.
    stream = rows.writeStream.outputMode("update").option("checkpointLocation", given.checkpoint)
    query = stream.trigger(processingTime="5 seconds").foreachBatch(publish).start()
    query.awaitTermination(given.seconds)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
