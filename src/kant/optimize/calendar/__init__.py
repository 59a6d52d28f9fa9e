"""The calendar: bookings of contiguous GPUs over windows of time. It fits, or it says which bookings collide.

The problem is static memory allocation: a buffer is a booking, its lifetime a window, its bytes GPUs.
"""
