"""The views of the data source `ledgermq`: node directories as tables.

`ports` defines the interface of a view, `view` what they share, `wanted` the selection of rows; the
other modules are the views. A view shows the stored data and judges nothing. A damaged entry has
`intact` false in `entries`, and is not a row where its record would have to be trusted. Everything
is read by the auditor's own decoder, in the tasks, in columns.
"""
