"""What the gateway adds to a request: time, CPU, memory; beside the least a server can do."""
