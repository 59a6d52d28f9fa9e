"""What `import kant` offers, and what the command line shares with it."""
