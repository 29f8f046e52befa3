"""The protocol carried out: its workflows run against a real object store.

`runner` answers the workflows' requests, `backend` writes and verifies metadata objects,
`job_checkpoints` is what a driver and the command line use. No decision is taken here.
"""
