"""Dense parameters that workers all-reduce, beside tables on servers."""
