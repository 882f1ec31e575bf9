"""Moving tasks of the job ps between servers."""
