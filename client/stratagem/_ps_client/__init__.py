"""The parameter servers as the client sees them: sessions, requests, answers."""
