"""The calendar: bookings of contiguous GPUs over windows of time. The result is a calendar that fits, or the bookings
that collide.

The problem is static memory allocation: a buffer is a booking, its lifetime a time window, its bytes GPUs.
"""
