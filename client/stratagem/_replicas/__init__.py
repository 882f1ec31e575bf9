"""Running replicas, and what one value per replica becomes."""
