"""How long a server with a backup is away when its primary is lost."""
