"""Operations: look at a cluster, plan a change, apply it, undo it. People use a terminal, assistants use MCP."""
