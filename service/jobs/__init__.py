"""Jobs as pure values: states, the one transition table, requests, attempts, leases and what a job needs."""
