"""Workers that train together, without servers."""
