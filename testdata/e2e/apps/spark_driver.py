"""A Spark driver as SPYT submits it directly: its page takes a port of its own choice, from 27001 up, and the driver writes the
address into the annotations of its operation once it knows it."""

import json
import os
import threading
import urllib.request

from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .appName("counting")
    .config("spark.ui.port", "27001")
    .config("spark.port.maxRetries", "200")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
parameters = {
    "operation_id": os.environ["YT_OPERATION_ID"],
    "parameters": {"annotations": {"description": {"Web UI": spark.sparkContext.uiWebUrl}}},
}
urllib.request.urlopen(
    urllib.request.Request(
        os.environ["YT_PROXY"] + "/api/v4/update_operation_parameters",
        data=json.dumps(parameters).encode(),
        headers={
            "Authorization": "OAuth " + os.environ["YT_SECURE_VAULT_YT_TOKEN"],
            "Content-Type": "application/json",
        },
    ),
    timeout=20,
)
spark.sparkContext.setJobDescription("count by remainder")
spark.range(1000).selectExpr("id % 7 as remainder").groupBy("remainder").count().collect()
threading.Event().wait()
