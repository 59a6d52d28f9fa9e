"""The calendar: bookings of contiguous GPUs over windows of time. It fits, or it says which bookings collide.

It is static memory allocation with another noun: a buffer is a booking, its lifetime a window, its bytes GPUs.
"""
