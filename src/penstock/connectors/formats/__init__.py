"""Formats of records: how a column of bytes becomes rows, and rows become bytes.

`record_format` is the contract and `registry` finds a format by name. `json_text` and
`csv_text` parse and print text, for records and for the files of `connectors/files` alike.
Nothing here knows of topics, files or epochs.
"""
