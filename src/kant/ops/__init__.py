"""Operations: look, plan a change, apply it, undo it. People do so in a terminal, assistants through MCP."""
