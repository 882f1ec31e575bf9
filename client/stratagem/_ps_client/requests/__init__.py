"""What servers are asked, as values that can be sent more than once."""
