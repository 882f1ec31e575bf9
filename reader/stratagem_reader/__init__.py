"""Following what is trained: replicas of published versions, and those who read them."""
