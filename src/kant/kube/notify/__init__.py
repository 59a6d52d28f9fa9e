"""What people are told: Events, pod conditions, and the status of Kant's own objects."""
