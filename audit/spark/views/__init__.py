"""The views of the data source `ledgermq`: node directories as tables.

`view` is what every view is, `wanted` what of it somebody asks for, `files` which log files that needs; the others are the views. A view
shows what is there and judges nothing; a damaged entry has `intact` false in `entries` and is no row where its record would have to be
believed. Everything is read by the auditor's own decoder, in the tasks, in columns.
"""
