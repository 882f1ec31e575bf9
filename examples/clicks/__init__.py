"""What the click model of `dlrm.py` consists of."""
