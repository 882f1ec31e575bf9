"""Who a process is, by its certificate; and connections on which both ends show theirs."""
