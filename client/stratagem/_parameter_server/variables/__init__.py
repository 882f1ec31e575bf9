"""What users hold of variables on servers, whole or divided into shards."""
