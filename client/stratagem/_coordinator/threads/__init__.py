"""The lock of a coordinator, and the threads that act by themselves."""
