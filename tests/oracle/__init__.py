"""Apache Kafka 3.9.1 as the oracle: the same requests, the same answers from both; and Kafka's own tools on our data.

Read `scenario.py` first: a scenario is a function that asks one broker; `test_answers.py` runs it against both, at
every version of its API, and compares what was answered field by field. `deviations.py` lists where we differ on
purpose, `errors.py` which errors there are. `python -m tests.oracle.show` shows answers to whoever writes a scenario.
"""
