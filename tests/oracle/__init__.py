"""Apache Kafka 3.9.1 as the oracle: both brokers answer the same requests alike; Kafka's own tools read our data.

Read `scenario.py` first: a scenario is a function that asks one broker. `test_answers.py` runs each scenario against
both brokers, at every version of its API, and compares the answers field by field. `deviations.py` lists where we
differ on purpose, `errors.py` which errors there are. `python -m tests.oracle.show` shows answers to whoever writes a
scenario.
"""
