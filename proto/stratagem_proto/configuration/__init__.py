"""How processes are told their settings: flags > environment > TF_CONFIG > file."""
