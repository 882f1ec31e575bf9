"""Programs that others have written, trained plainly and on parameter servers."""
