"""The account of data that workers share."""
