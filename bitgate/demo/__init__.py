"""The whole flow once, on this machine's CPU: `bitgate demo`."""
