"""Real servers on loopback, for tests, benchmarks and the demo: Kafka and an S3 server.

`installation` brings each into the user's cache folder by the ordinary clients of Maven and Go,
`processes` starts programs that end with the one who asked for them, `kafka` and `s3` say what
each server needs, and `fault_proxy` stands between a client and a server to break the line.
`python -m scripts.servers` is their command line.
"""
