"""Who viewed this also viewed: `python -m examples.activity.report LAKE`, over all page views of the lake."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import kbroker.spark

if TYPE_CHECKING:  # at run time only after session(), which says in one line what Spark needs and does not find
    from pyspark.sql import DataFrame, SparkSession

MOST_PAGES = 200
"""A member who has viewed more pages is a robot, and would be paired with everything."""


def also_viewed(views: DataFrame, most: int) -> DataFrame:
    """Return, for each page, the `most` pages that share most members with it: columns page, also, members.

    `views`: columns member and page.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    seen = views.select("member", "page").distinct()
    busy = seen.groupBy("member").count().where(F.col("count") > MOST_PAGES).select("member")
    seen = seen.join(busy, "member", "left_anti")
    pairs = (
        seen.join(seen.withColumnRenamed("page", "also"), "member")
        .where("page <> also")
        .groupBy("page", "also")
        .agg(F.count("*").alias("members"))
    )
    rank = F.row_number().over(Window.partitionBy("page").orderBy(F.desc("members"), "also"))
    return pairs.withColumn("rank", rank).where(F.col("rank") <= most).drop("rank")


def page_views(spark: SparkSession, lake: str) -> DataFrame:
    from pyspark.sql import functions as F

    rows = spark.read.parquet(f"{lake}/topic=page_view")
    event = F.from_json(F.col("value").cast("string"), "member long, page string")
    return rows.select(event.alias("event")).select("event.*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lake")
    parser.add_argument("--most", type=int, default=3, help="pages for each")
    parser.add_argument("--to", metavar="TOPIC", help="publish it to a topic too, keyed by page")
    parser.add_argument("--bootstrap-server", default="localhost:9092")
    given = parser.parse_args()
    try:
        spark = kbroker.spark.session(spark_ui_enabled=False, spark_sql_shuffle_partitions=4)
    except RuntimeError as error:
        raise SystemExit(f"report: {error}") from None
    from pyspark.sql import functions as F

    found = also_viewed(page_views(spark, given.lake), given.most).cache()
    found.orderBy(F.desc("members"), "page", "also").show(20, truncate=False)
    if given.to:
        lists = found.groupBy("page").agg(
            F.sort_array(F.collect_list(F.struct("members", "also")), False).alias("also")
        )
        rows = lists.select(F.col("page").alias("key"), F.to_json("also").alias("value"))
        writer = rows.write.format("kbroker").mode("append").option("topic", given.to)
        writer.option("kafka.bootstrap.servers", given.bootstrap_server).save()
    spark.stop()


if __name__ == "__main__":
    main()
