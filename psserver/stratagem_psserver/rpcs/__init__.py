"""The RPCs, each a translation: decode, one call, encode."""
