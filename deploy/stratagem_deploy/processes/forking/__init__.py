"""Starting processes by forking one that has loaded the modules of their program."""
