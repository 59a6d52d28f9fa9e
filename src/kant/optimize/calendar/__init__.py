"""The calendar: bookings of contiguous GPUs over windows of time. Solving it gives a plan for all bookings, or the
bookings that collide.

The problem is that of static memory allocation: a booking is a buffer, its time window a lifetime, its GPUs bytes.
"""
