"""Kafka topics as sources and sinks; the only place that imports `confluent_kafka`.

`client` makes connections and says what their errors mean. Planning is apart from calls: it
works on plain values. Nothing here imports the client library before a connection is opened.
"""
