"""The public names of `import kant`, and what the command line shares with them."""
