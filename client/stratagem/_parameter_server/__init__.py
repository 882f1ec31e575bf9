"""The strategy whose variables live on parameter servers."""
