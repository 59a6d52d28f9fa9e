"""The record of a live run: the data of its web page, across all the states that its driver builds."""

from kant.live.record.columns import JOB_COLUMNS, STATUS, WAIT
from kant.live.record.run_record import RunRecord

__all__ = ["JOB_COLUMNS", "STATUS", "WAIT", "RunRecord"]
