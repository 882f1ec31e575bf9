"""The RPCs. Each method decodes its request, makes one call, and encodes the response."""
