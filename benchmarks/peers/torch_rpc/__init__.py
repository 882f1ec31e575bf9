"""Calls of torch.distributed.rpc to a server."""
