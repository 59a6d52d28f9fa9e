"""One cycle: the page that everybody reads first is `cycle`."""
