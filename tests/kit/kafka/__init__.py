"""Apache Kafka and ZooKeeper as processes, parts of Kafka in a Java process, and the jars of all Java programs.

Programs of our own in Java are in `java/`; those of one test folder are in that folder. Read `process.py` first.
"""
