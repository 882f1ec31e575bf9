"""A live page about a cluster: what `status`, `top` and `doctor` say, and how it has changed."""
