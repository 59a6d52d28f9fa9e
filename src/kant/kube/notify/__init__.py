"""Messages to users: Events, pod conditions, and the status of Kant's own objects."""
