"""The protocol of the authors' release as named switches: turned one at a time towards the corrected one.

`switches` names them, `descriptions` says what each does, `tasks` builds the two tasks that a setting
sees, `batches` and `gradients` are the release's loop, `cell` one run of it, `study` the whole
experiment and `waterfall_tables` what comes of it.
"""
