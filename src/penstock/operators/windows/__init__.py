"""Windows over event time (tumbling, sliding, session) and over processing time (the first two).

Tumbling and sliding windows share panes: rows become partials per key and pane before they
are sent to the owner of their key, and a window is merged from its panes when it closes.
Sessions are kept one by one. With allowed lateness both emit their results again when late rows
change them; panes can also be of changelogs. The aggregates themselves are in
`operators.aggregates`.
"""
