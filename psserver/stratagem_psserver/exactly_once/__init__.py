"""What changes variables, and is applied once however often it comes."""
