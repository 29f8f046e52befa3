"""What people see of a running job: progress on a terminal, errors as messages and exit codes.

Shows the values of `penstock.runtime.status` and changes nothing: a display that is slow,
broken or absent makes no difference to the job. No decision belongs here, nor anything that
a job needs to run.
"""
